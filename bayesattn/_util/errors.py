from bayesattn.errors import BayesattnError as BayesattnError
from bayesattn.errors import MissingLibrary as MissingLibrary
