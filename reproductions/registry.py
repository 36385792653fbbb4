"""The rows: what the two papers say, where, and which experiment checks it. Data alone; numbers are in the results.

Places are those of the papers' figures and abstracts. Theorem texts of arXiv:2212.14852 were not at hand: its rows are the
claims of its abstract and of what has been written about it, in forms that can be checked (EXCHANGEABILITY).
"""

from typing import NamedTuple

PATHS, TOKENS = "2405.15926", "2212.14852"
PAPERS = {
    PATHS: "Tiberi, Mignacco, Irie, Sompolinsky: Dissecting the Interplay of Attention Paths in a Statistical Mechanics"
    " Theory of Transformers (NeurIPS 2024)",
    TOKENS: "Zhang, Liu, Cai, Wang, Wang: An Analysis of Attention via the Lens of Exchangeability and Latent Variable"
    " Models (2022)",
}


class Row(NamedTuple):
    """A figure, claim or equation of a paper.

    `says` is what the paper says in our words, `law` the formula it is held against, `tolerance` the reason for what
    difference is allowed, `by` the experiments that check it. `qualification` says with which one it is reproduced, where a
    literal reading fails; `why` says what is known about the reason where it is not, or cannot be told.
    """

    id: str
    paper: str
    place: str
    says: str
    law: str
    tolerance: str
    by: tuple[str, ...]
    qualification: str = ""
    why: str = ""

    @property
    def command(self) -> str:
        """What checks it."""
        return f"python -m reproductions {self.id}"


EXACT = "rounding of float64"
DRAWN = "Monte Carlo errors of both sides"
FINITE = "Monte Carlo error, and what a theory to first order in 1/N leaves out"
TEST_SET = "McNemar's test on the same test examples, with Monte Carlo error"

ROWS: tuple[Row, ...] = (
    # Attention paths
    Row(
        "paths-1a",
        PATHS,
        "figure 1a; model",
        "A deep multi-head attention network is a sum over attention paths, one head of each layer.",
        "f = sum_pi w^pi . (V_0 xi^pi) / sqrt(N_0 N_1 Pi)",
        EXACT,
        ("network",),
    ),
    Row(
        "paths-1b",
        PATHS,
        "figure 1b; order parameter",
        "The order parameter weighs each pair of paths by the overlap of their effective weights.",
        "U^{pi pi'} = w^pi . w^pi' / N_1",
        EXACT,
        ("network",),
    ),
    Row(
        "paths-kernel",
        PATHS,
        "figure 1d; kernel",
        "The kernel is the sum of path-path kernels weighed by U.",
        "K = s_0^2 / (N_0 Pi) sum U^{pi pi'} xi^pi . xi^pi'",
        EXACT,
        ("network",),
    ),
    Row(
        "paths-predictor",
        PATHS,
        "theory; predictor statistics",
        "Mean and variance of the predictor are those of a Gaussian process with this kernel.",
        "k^T (K + T I)^-1 Y, k_** - k^T (K + T I)^-1 k",
        DRAWN,
        ("network", "hidden_markov"),
    ),
    Row(
        "paths-action",
        PATHS,
        "theory; order parameter",
        "U is at the minimum of an action, energy plus entropy, in the limit N, P to infinity at fixed P / N.",
        "relative deviation of draws from the saddle point ~ 1/N at fixed load",
        DRAWN,
        ("limit", "hidden_markov"),
        qualification="at the paper's N = 10 the saddle point itself is several per cent off, theory to first order in 1/N"
        " is not; the exponent is that of one layer of two heads",
    ),
    Row(
        "paths-gp",
        PATHS,
        "figure 1d; GP limit",
        "At infinite width cross-path kernels vanish and same-path kernels weigh equally.",
        "U -> s_a^2 prod s_l^2 I, deviation ~ 1/N",
        FINITE,
        ("limit", "hidden_markov"),
    ),
    Row(
        "paths-1c",
        PATHS,
        "figures 1c, 2d; alignment",
        "At finite width the kernel's leading principal components overlap with the labels more than in the GP limit.",
        "kernel-target alignment; |u_k . Y| / |Y| of the first components",
        DRAWN,
        ("hidden_markov",),
    ),
    Row(
        "paths-2a",
        PATHS,
        "figure 2a; task",
        "Classes of hidden Markov chains differ in how long they stay in a state.",
        "probability to stay 0.7 and 0.3, first state fair",
        DRAWN,
        ("hidden_markov",),
    ),
    Row(
        "paths-2b",
        PATHS,
        "figure 2b; paths",
        "Of four paths one is good, one denoises (added to the good one it helps), and two carry no signal.",
        "accuracy of the GP limit of single paths",
        TEST_SET,
        ("hidden_markov",),
        qualification="same_token -> random is not free of signal: it sees, by the position of what it looks at, whether the"
        " state was left at the one or two steps that the random head picks",
    ),
    Row(
        "paths-2c-theory",
        PATHS,
        "figure 2c, top",
        "Theory and samples agree on accuracy and predictor at every width.",
        "theory to first order in 1/N",
        FINITE,
        ("hidden_markov",),
    ),
    Row(
        "paths-2c-gain",
        PATHS,
        "figure 2c, top",
        "Finite width beats the GP limit of all paths, of the good path, and of good and denoising path.",
        "accuracy at finite width less accuracy of each GP limit, above 0",
        TEST_SET,
        ("hidden_markov",),
        qualification="over the GP limit of all paths at every width, of the good path at N = 10 and 30, of good and"
        " denoising path at N = 10 (by less than a point); not at large N, where U tends to the GP limit of all paths",
    ),
    Row(
        "paths-2c-u",
        PATHS,
        "figure 2c, bottom",
        "Entries of U against N: the good path's diagonal and a cross term grow as N falls.",
        "theory to first order in 1/N, entry by entry",
        FINITE,
        ("hidden_markov",),
    ),
    Row(
        "paths-2e",
        PATHS,
        "figure 2e",
        "With noise of strength 5 and good and denoising paths alone, finite width still gains.",
        "accuracy at finite width less the GP limit, above 0; theory to first order in 1/N",
        TEST_SET,
        ("noise",),
    ),
    Row(
        "paths-noise",
        PATHS,
        "beyond the paper: figure 2e at other strengths",
        "The gain over the GP limit depends on the strength of the noise.",
        "theory's accuracy against sigma_perp",
        TEST_SET,
        ("noise",),
        qualification="the gain at N = 10 is greatest where the GP limit fails and the theory does not yet, at strength 10;"
        " at strength 0 finite width loses about a point",
    ),
    Row(
        "paths-load",
        PATHS,
        "theory; load P / N",
        "Kernel combination is an effect of finite load: it vanishes as P / N does, here as N grows.",
        "gain and alignment of the theory over load and temperature",
        TEST_SET,
        ("load",),
    ),
    Row(
        "paths-deep",
        PATHS,
        "theory; depth, heads",
        "The theory holds for any number of layers and heads.",
        "theory to first order in 1/N, three layers of 2, 3 and 1 heads",
        FINITE,
        ("deep",),
    ),
    Row(
        "paths-3a",
        PATHS,
        "figure 3a; task",
        "One-shot classification of images of classes that training never saw.",
        "test classes share nothing with training classes; labels balanced",
        EXACT,
        ("one_shot",),
    ),
    Row(
        "paths-3b",
        PATHS,
        "figure 3b",
        "Finite width beats the GP limit on one-shot images, and theory and samples agree.",
        "accuracy at N = 10 less the GP limit, mean over seeds, above 0",
        TEST_SET,
        ("one_shot",),
        qualification="at N = 10 by draws, at other widths by theory alone; at one temperature; tokens of 128 features and"
        " keys of 32, where the paper has 512 and 128",
    ),
    Row(
        "paths-3c",
        PATHS,
        "figure 3c",
        "Theory and samples give the same matrix U at N = 10, with large cross-path entries.",
        "theory to first order in 1/N, along its correction, in its largest cross-path entry, and of all entries jointly",
        FINITE,
        ("one_shot",),
        qualification="the saddle point itself is 6 % off; 1600 draws know single ones of 136 entries to two per cent or so,"
        " too little to tell that each is within 5 %",
    ),
    Row(
        "paths-3d",
        PATHS,
        "figure 3d",
        "At N = 10 the kernel's leading principal components overlap with the labels more than in the GP limit.",
        "kernel-target alignment; share of |Y|^2 in the first 10 principal components",
        DRAWN,
        ("one_shot",),
    ),
    Row(
        "paths-3e",
        PATHS,
        "figure 3e",
        "Head scores tell what is lost with each head of the network trained by gradient descent.",
        "rank correlation of scores and losses above 0; the paper's network has 0.86",
        "the law of rank correlations of unrelated numbers",
        ("one_shot",),
        why="correlations of single networks scatter from none to the paper's; five are too few to tell their mean from 0",
    ),
    Row(
        "paths-3f",
        PATHS,
        "figure 3f; pruning",
        "Heads of low score can go at a small loss of accuracy.",
        "accuracy after removal by score less that after removal at random, above 0",
        "standard error over seeds",
        ("one_shot",),
        why="the head of least score costs several points in most networks, and in one more than any other head",
    ),
    # Exchangeable tokens
    Row(
        "tokens-latent",
        TOKENS,
        "abstract; exchangeability",
        "Exchangeable tokens have a latent, of the same law for any number of tokens.",
        "urn draws = a mixture over z of independent draws, for every n",
        EXACT,
        ("urn", "exact posterior"),
    ),
    Row(
        "tokens-positions",
        TOKENS,
        "abstract; BERT and ViT",
        "Tokens that include their positions are exchangeable for the network.",
        "output unchanged when tokens are permuted together with their positions",
        EXACT,
        ("positions",),
        qualification="not where the readout is that of one place, nor before positions are included",
    ),
    Row(
        "tokens-sufficient",
        TOKENS,
        "abstract (a); sufficiency",
        "The posterior of the latent is a sufficient representation of the tokens.",
        "I(y; X) = I(y; pi(X))",
        EXACT,
        ("sufficiency", "urn"),
        qualification="of exchangeable tokens: an urn that remembers its last colour tells more than pi(X)",
    ),
    Row(
        "tokens-minimal",
        TOKENS,
        "abstract (a); minimality",
        "It is minimal.",
        "merging any two cells of pi loses information",
        EXACT,
        ("sufficiency",),
        qualification="minimal for all tasks together, not for each single one",
    ),
    Row(
        "tokens-cme",
        TOKENS,
        "abstract (b); inference",
        "Attention with the right parameter infers the latent posterior.",
        "CME attention at ridge sigma^2 / tau^2 = posterior mean",
        EXACT,
        ("two attentions", "exact posterior"),
        qualification="CME attention is the posterior mean; softmax attention is not",
    ),
    Row(
        "tokens-covariance",
        TOKENS,
        "abstract (b); posterior",
        "Attention gives the posterior, its covariance too.",
        "sigma^2 phi^T M phi' by attention to kernels as values",
        DRAWN,
        ("covariance",),
        qualification="by CME attention to kernels; the variance of values under softmax weights is not it",
    ),
    Row(
        "tokens-rate",
        TOKENS,
        "abstract (b); approximation error",
        "The error of CME attention falls with the number of tokens; of finite latents, exponentially.",
        "exact at each n; RMS slope -1/2, with the published ridge -1/4; Chernoff information",
        DRAWN,
        ("conditional mean embedding", "sufficiency"),
        qualification="with the published ridge n^(3/4) the slope is -0.23 at n = 10^6 and tends to -1/4",
    ),
    Row(
        "tokens-softmax",
        TOKENS,
        "abstract (b); softmax attention",
        "Softmax and CME attention have the same limit as tokens grow in number.",
        "lim CME = lim softmax / a_1(kappa) for linear f at fixed bandwidth; the same at shrinking bandwidth",
        DRAWN,
        ("softmax, fixed bandwidth", "softmax, shrinking bandwidth"),
        qualification="up to a constant, for linear functions alone at fixed bandwidth; exactly at shrinking bandwidth",
    ),
    Row(
        "tokens-heads",
        TOKENS,
        "abstract (b); heads of a network",
        "Heads of a network infer the conditional mean of the value given the key.",
        "head / a_1 = posterior mean up to the law of the errors at each n",
        DRAWN,
        ("heads as posterior inference",),
        qualification="a head returns a_1 times the posterior mean, with the asking token as one more",
    ),
    Row(
        "tokens-generalisation",
        TOKENS,
        "abstract (c); supervised",
        "Empirical risk minimisation learns the parameter up to an error independent of the number of tokens.",
        "tr(H^-1 J) / m; Lipschitz constant without n",
        DRAWN,
        ("supervised learning",),
        qualification="the bound has no n in it; the error itself falls with n",
    ),
    Row(
        "tokens-length",
        TOKENS,
        "abstract (c); supervised, many tokens",
        "The generalisation error has a limit above 0 as tokens grow in number, for several heads and layers too.",
        "tr(H^-1 J) at n to infinity; one head, two heads, two layers",
        DRAWN,
        ("length",),
    ),
    Row(
        "tokens-descent",
        TOKENS,
        "beyond the abstract: optimisation error",
        "Risk is approximation plus generalisation plus optimisation error, which gradient descent takes away.",
        "sum (1 - eta lambda_i)^(2t) of the Hessian's eigenvalues",
        DRAWN,
        ("descent",),
        qualification="of few steps the generalisation error is smaller too: what was not learnt was not overfitted",
    ),
    Row(
        "tokens-masked",
        TOKENS,
        "abstract (c); self-supervised",
        "A transfer coefficient bounds the downstream error by that of masked-token pretraining.",
        "downstream <= tr(B C^-1 B^T) x pretraining",
        DRAWN,
        ("masked-token pretraining",),
        qualification="true of the bound and of least squares; a ridge that is good for masked tokens need not suffer from"
        " condition number 10^4 on, and at 10^3 does by ten times",
    ),
    Row(
        "tokens-pretraining",
        TOKENS,
        "abstract (c); self-supervised",
        "Masked-token pretraining learns the parameter up to an error independent of the number of tokens.",
        "excess over the best parameter ~ 1/m, no growth with n",
        DRAWN,
        ("masked-token sizes",),
    ),
    Row(
        "tokens-condition",
        TOKENS,
        "abstract (c); condition number",
        "A condition number is pivotal to downstream tasks, with softmax attention too.",
        "transfer against the condition number, Bayes risk beside it",
        DRAWN,
        ("masked softmax",),
        qualification="for heads that whiten keys: excess of exponent 0.6 up to 10^4, 1 from 10^8 on; heads that take keys"
        " as they are suffer no more than predicting zero from 10^3 on",
    ),
    Row(
        "tokens-hidden-markov",
        TOKENS,
        "beyond the paper: hidden Markov chains",
        "How far trained attention stays from an exact posterior where tokens are not exchangeable.",
        "bits lost on the last state against the forward algorithm, above 0; of exchangeable tokens, towards 0",
        DRAWN,
        ("forward",),
        qualification="attention without positions infers the posterior of exchangeable tokens alone",
    ),
)
