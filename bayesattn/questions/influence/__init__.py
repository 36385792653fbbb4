"""Influence of training examples on what a posterior says, exactly given draws of U."""

from bayesattn.questions.influence.influence import influence
from bayesattn.questions.influence.susceptibility import Susceptibility, susceptibility
from bayesattn.questions.influence.table import InfluenceTables

__all__ = ["InfluenceTables", "Susceptibility", "influence", "susceptibility"]
