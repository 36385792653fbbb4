"""Collapsed parameterisation: V_0 integrated out, order parameters by their Bartlett factors (THEORY section 3).

The dimension and the cost do not depend on the widths, and neither does the compiled program. Sampled coordinates are
whitened, by default around the mode with the Laplace covariance, which is the metric a sampler wants; this changes no
probability. Where labels are classes, those of order parameters have the prior's scale, and outputs are sampled too.
"""

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Float, Key

from bayesattn._checks import one_of, positive_integer, seed_number
from bayesattn._random import fingerprint, stream
from bayesattn._settings import with_own_settings
from bayesattn.kernels.choice import compressed
from bayesattn.kernels.conditionals import sample_labels
from bayesattn.kernels.gaussian_process import GaussianProcess
from bayesattn.kernels.path_inputs import input_scale, outputs_of
from bayesattn.models import categorical
from bayesattn.models.posterior import Model
from bayesattn.models.trees import Draws, in_order_of_rows, opened_of
from bayesattn.theory import bartlett
from bayesattn.theory.mode import find_mode
from bayesattn.theory.problem import Problem, problem_of
from bayesattn.theory.saddle_point import MOST_FOR_HESSIAN, NotConverged
from bayesattn.theory.whitening import Whitening

if TYPE_CHECKING:
    import xarray  # whose names a type checker at run time finds by their whole path

DEPTHS = (5, 10)
"""Of a tree, in warm-up and after it."""
Structure = tuple[bartlett.LayerShape, ...]
Sites = dict[str, Array]


def structure(model: Model) -> Structure:
    """Shapes of the Bartlett factors: all that the compiled program depends on."""
    return bartlett.layer_shapes(model.architecture)


def options(shapes: Structure) -> dict[str, Any]:
    """Whitened coordinates are their own metric, but where a layer is narrow: there the posterior is far from Gaussian.

    It is so of classes too, of which the structure does not tell.

    A metric for each of many coordinates would have to be told from fewer draws than they are, and trees of the first steps
    of warm-up, which are small, take a minute each (1,231 coordinates, 144 paths).
    """
    many = sum(shape.size for shape in shapes) > MOST_FOR_HESSIAN
    return {"adapt_mass_matrix": bartlett.narrow(shapes) and not many} | ({"max_tree_depth": DEPTHS} if many else {})


def prepare(model: Model, whitening: str = "laplace") -> dict[str, Array]:
    """Centre and scale of the whitened coordinates.

    `whitening` is "laplace" or "prior" (around the prior's mode); it changes how hard the posterior is to sample, not the
    posterior. Where labels are classes it is the prior's of order parameters, and Laplace's of the outputs,
    if these are at most `categorical.MOST_LATENTS` coordinates.
    Raises ValueError if it is something else.
    """
    one_of("whitening", whitening, ("laplace", "prior"))
    if model.law is None and whitening == "laplace":
        mode, problem = find_mode(model.likelihood, model.architecture)
        order = {} if problem.order is None else {"order": problem.order}
        arrays = {name: array for name, array in mode.whitening._asdict().items() if array is not None}
        return arrays | order
    shapes, widths = structure(model), jnp.array(model.architecture.widths, float)
    centre, scale = bartlett.stretched(shapes, widths)
    found = {"centre": centre, "scale": scale}
    if model.law is None:
        return found
    problem = problem_of(model.kernels, model.architecture)
    if bartlett.narrow(shapes):
        # Of the Gaussian likelihood: which paths matter is much the same, and only the order of rows is taken from it.
        with suppress(NotConverged):
            problem = find_mode(model.kernels, model.architecture)[1]
        found |= {} if problem.order is None else {"order": problem.order}
    outputs = categorical.whitening_at(model.kernels, model.law, problem.factor(centre, shapes))
    return found | {"latent_centre": outputs.centre, "latent_scale": outputs.scale}


def data(model: Model, *, order: Any = None, **whitening: Any) -> dict[str, Any]:
    """Arrays that the program conditions on; those of whitening and the order of rows are from `prepare`."""
    test = None if model.test_path_inputs is None else jnp.asarray(model.test_path_inputs)
    arrays = problem_of(model.kernels, model.architecture)._asdict()
    return arrays | {
        "order": None if order is None else jnp.asarray(order),
        "test_path_inputs": test,
        "input_variance": jnp.asarray(model.architecture.input_variance),
        "observation": model.law,
        **{name: jnp.asarray(array) for name, array in whitening.items()},
    }


def condensed(model: Model) -> GaussianProcess:
    """What chains of these labels look at: where examples are many, the few that have the same likelihood."""
    return model.kernels if model.law is not None else compressed(model.kernels, model.architecture)


def with_labels(data: dict[str, Any], labels: Array) -> dict[str, Any]:
    """The same data with other labels."""
    return data | {"likelihood": data["likelihood"].with_labels(labels)}


def problem_in(data: dict[str, Any]) -> Problem:
    """The arrays of the posterior of a point."""
    return Problem(**{name: data[name] for name in Problem._fields})


def whitening_of(data: dict[str, Any]) -> Whitening:
    """Of the sampled coordinates."""
    return Whitening(**{name: data[name] for name in Whitening._fields if name in data})


def whitening_of_latents(data: dict[str, Any]) -> Whitening:
    """Of outputs where labels are classes."""
    return Whitening(data["latent_centre"], data["latent_scale"])


def _outputs(sites: Sites, data: dict[str, Any], factor: Array) -> Array:
    """f on the training examples, where labels are classes."""
    latents = whitening_of_latents(data).point(sites["latents"])
    return categorical.outputs_given(data["likelihood"], factor, latents)


def _projection(key: Any, sites: Sites, data: dict[str, Any], factor: Array) -> Array:
    """What the network sees of V_0, drawn given the labels or the outputs."""
    if data["observation"] is None:
        return data["likelihood"].sample_projection(key, factor)
    latents = whitening_of_latents(data).point(sites["latents"])
    return categorical.projection_given(key, data["likelihood"], factor, latents)


def _point(sites: Sites, data: dict[str, Any]) -> Array:
    """Bartlett coordinates of a draw."""
    return whitening_of(data).point(sites["whitened"])


class BartlettPrior(dist.Distribution):
    """Prior of whitened Bartlett coordinates."""

    support = dist.constraints.real_vector  # pyright: ignore[reportAssignmentType]
    pytree_data_fields = ("widths", "whitening")
    pytree_aux_fields = ("shapes",)

    def __init__(self, shapes: Structure, widths, whitening: Whitening, *, validate_args=None):
        self.shapes, self.widths, self.whitening = shapes, widths, whitening
        super().__init__((), (whitening.centre.shape[-1],), validate_args=validate_args)

    def sample(self, key, sample_shape=()):
        """Draws from the prior."""
        assert key is not None
        keys = jax.random.split(key, sample_shape) if sample_shape else key
        draw = partial(bartlett.sample_prior, shapes=self.shapes, widths=self.widths)
        return jnp.vectorize(lambda k: self.whitening.whitened(draw(k)), signature="()->(n)")(keys)

    def log_prob(self, value):
        """Log density of whitened coordinates."""
        point = self.whitening.point(value)
        return bartlett.log_prior(point, self.shapes, self.widths) + self.whitening.log_volume()


class StandardNormal(dist.Distribution):
    """Of whitened coordinates whose points are standard normal a priori."""

    support = dist.constraints.real_vector  # pyright: ignore[reportAssignmentType]
    pytree_data_fields = ("whitening",)

    def __init__(self, whitening: Whitening, *, validate_args=None):
        self.whitening = whitening
        super().__init__((), (whitening.centre.shape[-1],), validate_args=validate_args)

    def sample(self, key, sample_shape=()):
        """Draws from the prior."""
        assert key is not None
        points = jax.random.normal(key, (*sample_shape, *self.event_shape))
        return jnp.vectorize(self.whitening.whitened, signature="(n)->(n)")(points)

    def log_prob(self, value):
        """Log density of whitened coordinates."""
        point = self.whitening.point(value)
        return -(point @ point + len(point) * jnp.log(2 * jnp.pi)) / 2 + self.whitening.log_volume()


def program(shapes: Structure):
    """NumPyro program of `data`: whitened coordinates under their prior, labels by the Gaussian evidence given U.

    Labels that are classes are given the outputs, which are sites then.
    """

    def collapsed_program(data: dict[str, Any]):
        whitening = whitening_of(data)
        point = whitening.point(
            jnp.asarray(numpyro.sample("whitened", BartlettPrior(shapes, data["widths"], whitening)))
        )
        factor, likelihood = problem_in(data).factor(point, shapes), data["likelihood"]
        if data["observation"] is None:
            numpyro.factor("labels", likelihood.log_density(factor))
            return
        latents = numpyro.sample("latents", StandardNormal(whitening_of_latents(data)))
        labels = likelihood.by_example(likelihood.labels)
        found = data["observation"].log_likelihood(_outputs({"latents": jnp.asarray(latents)}, data, factor), labels)
        numpyro.factor("labels", jnp.sum(found))

    return collapsed_program


def initial(key: Key[Array, ""], data: dict[str, Any], shapes: Structure) -> Sites:
    """Where a chain starts: a draw of the Gaussian that whitening takes the posterior for."""
    if data["observation"] is None:
        return {"whitened": jax.random.normal(key, data["centre"].shape)}
    point_key, latents_key = jax.random.split(key)
    return {
        "whitened": jax.random.normal(point_key, data["centre"].shape),
        "latents": jax.random.normal(latents_key, data["latent_centre"].shape),
    }


def quantities(sites: Sites, data: dict[str, Any], shapes: Structure, key: Key[Array, ""]) -> Sites:
    """Bartlett coordinates, order parameter U and, where there are test examples, a draw of f on them given U."""
    point = _point(sites, data)
    factor = problem_in(data).factor(point, shapes)
    if data["order"] is not None:
        point = bartlett.in_order(bartlett.bartlett_factors(point, shapes, data["order"]), shapes)
    result = {"bartlett": point, "order_parameter": factor @ factor.T}
    test, classes = data["test_path_inputs"], data["observation"] is not None
    if test is None and not classes:
        return result
    readout = _readout_scale(data) * factor @ _projection(key, sites, data, factor)
    if classes:
        result["readout"] = readout
    if test is not None:
        drawn = outputs_of(jnp.swapaxes(test, 1, 2), readout, data["likelihood"].outputs)
        result["prediction"] = data["likelihood"].by_example(drawn)
    return result


def _readout_scale(data: dict[str, Any]) -> Array:
    """Of F Z, to be the readout of path inputs."""
    _, features, paths = data["likelihood"].features.shape
    return input_scale(data["input_variance"], paths, features)


def draw_prior(key: Key[Array, ""], data: dict[str, Any], shapes: Structure) -> Sites:
    """Sites drawn from the prior."""
    if data["observation"] is None:
        return {"whitened": whitening_of(data).whitened(bartlett.sample_prior(key, shapes, data["widths"]))}
    point_key, latents_key = jax.random.split(key)
    return {
        "whitened": whitening_of(data).whitened(bartlett.sample_prior(point_key, shapes, data["widths"])),
        "latents": StandardNormal(whitening_of_latents(data)).sample(latents_key),
    }


def draw_labels(key: Key[Array, ""], sites: Sites, data: dict[str, Any], shapes: Structure) -> Array:
    """Labels drawn given the sites: Normal(0, K + T I), or classes."""
    likelihood, factor = data["likelihood"], problem_in(data).factor(_point(sites, data), shapes)
    if data["observation"] is not None:
        return data["observation"].sample(key, _outputs(sites, data, factor))
    return likelihood.by_example(sample_labels(likelihood, key, factor))


def network_weights(sites: Sites, data: dict[str, Any], shapes: Structure, widths: tuple[int, ...], key: Any) -> Sites:
    """Exact draw of all weights given the coordinates, as `weights` makes them."""
    point = _point(sites, data)
    if data["observation"] is None:
        return _weights_of_draw(point, None, key, data, widths, shapes)
    readout_key, key = jax.random.split(key)
    factor = problem_in(data).factor(point, shapes)
    readout = _readout_scale(data) * factor @ _projection(readout_key, sites, data, factor)
    return _weights_of_draw(point, readout, key, data, widths, shapes)


MOST_BYTES = 2**32


@with_own_settings
def weights(
    draws: Draws, model: Model, seed: int = 0, *, thin: int = 1, max_bytes: int = MOST_BYTES
) -> "xarray.Dataset":
    """Exact draws of all weights, one for each collapsed draw (THEORY section 3).

    From the readout down: path vectors W_l = sqrt(N_l) F_l Q_l^T with Q_l a uniformly random orthonormal frame, which begins
    with that of the layer above where a skip copies its path vectors (EXTENSIONS section 1); values
    V_l^h = s_l Q_{l+1} B_l[h] Q_l^T + (I - Q_{l+1} Q_{l+1}^T) x a prior draw, which is the prior given W_{l+1} and W_l;
    V_0 by Matheron's rule; of classes as in the prior, given what is known of it, F Z.

    Args:
        draws: result of `sample` with parameterisation "collapsed", a `bayesattn.runs.Run` of it, or a run's folder.
        model: the model they were drawn from.
        seed: of the frames and the prior draws.
        thin: keep every thin-th draw, the last of each thin, as samplers do.
        max_bytes: most memory that the weights may take.

    Returns:
        Dataset with V_0 (chain, draw, N_1, N_0), V_l (chain, draw, H_l, N_{l+1}, N_l) for l = 1..L, a (chain, draw, N_a),
        of m outputs (chain, draw, m, N_a).

    Raises:
        ValueError: draws of another parameterisation or model, or weights that would take more than `max_bytes`.
    """
    positive_integer("thin", thin)
    seed_number("seed", seed)
    tree = opened_of(draws, model)
    posterior = tree["posterior"].to_dataset()
    if "bartlett" not in posterior:
        raise ValueError("draws must come from parameterisation 'collapsed', got a posterior without 'bartlett'")
    arch, shapes = model.architecture, structure(model)
    points = posterior["bartlett"].isel(draw=slice(thin - 1, None, thin))
    if points.shape[-1] != sum(shape.size for shape in shapes):
        raise ValueError(
            f"draws must come from this model, got {points.shape[-1]} Bartlett coordinates,"
            f" expected {sum(shape.size for shape in shapes)}"
        )
    needed = 8 * arch.number_of_weights(model.path_inputs.shape[2]) * points.shape[0] * points.shape[1]
    if needed > max_bytes:
        raise ValueError(
            f"weights of all draws take {needed / 2**30:.1f} GiB, more than max_bytes; raise thin or max_bytes"
        )
    flat = jnp.asarray(points.values).reshape(-1, points.shape[-1])
    keys = jax.random.split(stream(seed, "weights", fingerprint(model)), len(flat))
    readouts = None
    if model.law is not None:
        if "readout" not in posterior:
            raise ValueError("draws of a model of classes must hold posterior['readout'], got draws without")
        drawn_readouts = in_order_of_rows(posterior["readout"], tree, model)
        kept = drawn_readouts.isel(draw=slice(thin - 1, None, thin)).values
        readouts = jnp.asarray(kept).reshape(-1, *kept.shape[2:])
    drawn = _weights(flat, readouts, keys, data(model), arch.widths, shapes)
    coords = {name: points[name] for name in ("chain", "draw")}
    import xarray

    return xarray.Dataset(
        {
            name: (
                ("chain", "draw", *arch.weight_dims()[name]),
                np.asarray(value).reshape(*points.shape[:2], *value.shape[1:]),
            )
            for name, value in drawn.items()
        },
        coords,
    )


@partial(jax.jit, static_argnames=("widths", "shapes"))
def _weights(points, readouts, keys, data, widths: tuple[int, ...], shapes: Structure) -> Sites:
    def one(draw):
        point, readout, key = draw
        return _weights_of_draw(point, readout, key, data, widths, shapes)

    return jax.lax.map(one, (points, readouts, keys))


def _weights_of_draw(point, readout, key, data, widths, shapes) -> Sites:
    """Of a point, and of a readout of path inputs where that is known; else it is drawn given the labels."""
    bartletts = bartlett.bartlett_factors(point, shapes, data["order"])
    readout_key, input_key, *layer_keys = jax.random.split(key, len(shapes) + 1)
    frame = _frame(readout_key, widths[-1], shapes[-1].columns)
    last = jnp.sqrt(data["variances"][-1]) * bartletts[-1] @ frame.T
    result = {"a": last[0] if len(last) == 1 else last}
    for layer in range(len(shapes) - 1, 0, -1):
        deviation = jnp.sqrt(data["variances"][layer])
        frame_key, prior_key = jax.random.split(layer_keys[layer - 1])
        shape = shapes[layer - 1]
        known = frame if shape.skip else None
        lower, heads = _frame(frame_key, widths[layer - 1], shape.diagonal, known), shape.heads
        prior = deviation * jax.random.normal(prior_key, (heads, len(frame), len(lower)))
        seen = deviation * jnp.einsum("hrc,nc->hrn", bartletts[layer - 1].reshape(heads, -1, lower.shape[1]), lower)
        result[f"V_{layer}"] = prior + jnp.einsum("mr,hrn->hmn", frame, seen - jnp.einsum("mr,hmn->hrn", frame, prior))
        frame = lower
    prior_key, noise_key = jax.random.split(input_key)
    likelihood, deviation = data["likelihood"], jnp.sqrt(data["variances"][0])
    prior = jax.random.normal(prior_key, (len(frame), likelihood.features.shape[1]))
    seen = frame.T @ prior
    factor = problem_in(data).factor(point, shapes)
    if readout is None:
        drawn = likelihood.sample_projection(noise_key, factor, seen)
    else:  # F Z is known, and the rest of Z is as in the prior.
        drawn = seen + jnp.linalg.pinv(factor) @ (readout / _readout_scale(data) - factor @ seen)
    result["V_0"] = deviation * (prior + frame @ (drawn - seen))
    return result


def _frame(
    key: Key[Array, ""], rows: int, columns: int, known: Float[Array, "row known_column"] | None = None
) -> Float[Array, "row column"]:
    """Uniformly random orthonormal columns: QR of a Gaussian matrix, signs fixed by R's diagonal (Mezzadri 2007).

    Columns that are `known` come first, and the others are orthogonal to them.
    """
    random = jax.random.normal(key, (rows, columns))
    if known is not None:
        random = random - known @ (known.T @ random)
    orthonormal, upper = jnp.linalg.qr(random if known is None else jnp.concatenate([known, random], axis=1))
    orthonormal = orthonormal * jnp.where(jnp.diag(upper) < 0, -1.0, 1.0)
    # QR of orthonormal columns gives them back, to rounding.
    return orthonormal if known is None else jnp.concatenate([known, orthonormal[:, known.shape[1] :]], axis=1)
