"""Model classes of the registry of transformers: padding on either side and none agree, or one sentence says why not.

Run by `pytest -m transformers`, and over the whole registry by `pytest -m "transformers and heavy"`.
"""

import re

import numpy as np
import pytest

import bayesattn as ba
from bayesattn.errors import BayesattnError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytestmark = [pytest.mark.transformers, pytest.mark.filterwarnings("ignore")]

MOST_PARAMETERS = 10**6
SIZES = {
    50: "vocab_size",
    16: "hidden_size d_model n_embd dim emb_dim embed_dim embedding_size",
    4: "num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers num_encoder_layers num_decoder_layers"
    " num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads"
    " num_encoder_attention_heads num_decoder_attention_heads head_dim d_kv d_head kv_channels rotary_dim"
    " num_experts num_local_experts n_routed_experts",
    2: "num_key_value_heads num_experts_per_tok",
    32: "intermediate_size d_ff n_inner d_inner hidden_dim ffn_dim encoder_ffn_dim decoder_ffn_dim moe_intermediate_size"
    " shared_expert_intermediate_size ffn_hidden_size",
    64: "max_position_embeddings n_positions",
    1: "pad_token_id",
}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 4, "mamba_n_groups": 1, "mamba_d_state": 8}
OWN_SIZES = {
    "bamba": MAMBA | {"attn_layer_indices": [1, 3]},
    "falcon": {"head_dim": None},
    "funnel": {"num_hidden_layers": None, "block_sizes": [2, 2]},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "granitemoehybrid": MAMBA | {"layer_types": ["mamba", "attention"] * 2},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "olmo_hybrid": {"layer_types": ["linear_attention", "full_attention"] * 2},
    "prophetnet": {"num_hidden_layers": None},
    "qwen3_next": {"layer_types": ["linear_attention", "full_attention"] * 2},
    "reformer": {"axial_pos_embds": False, "attn_layers": ["local", "local"]},
    "squeezebert": dict.fromkeys(
        ["q_groups", "k_groups", "v_groups", "post_attention_groups", "intermediate_groups", "output_groups"], 2
    ),
    "xlm-prophetnet": {"num_hidden_layers": None},
    "xlnet": {"max_position_embeddings": None},
    "zamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False},
}
AGREE = ["bart", "distilbert", "falcon", "gpt2", "gpt_oss", "llama", "mpnet", "openai-gpt", "roberta", "t5", "xlm"]
AGREE += ["xlnet"]
"""Kinds that must agree where the version has them, whose positions and blocks differ."""
HYBRID = ["bamba", "granitemoehybrid", "jamba", "lfm2", "qwen3_next"]
REFUSED = {
    "fnet": "which takes no output_attentions|FNetModel has no attention",
    "longformer": "attention must have shape",
    "prophetnet": "scores before the softmax are not attention",
    "squeezebert": "scores before the softmax are not attention",
}
LENGTHS = (9, 5, 7, 5)


def tiny(kind):
    """A small random model of the registry that reads texts, its encoder if it has a decoder too, or None."""
    try:
        default = transformers.CONFIG_MAPPING[kind]()
        sizes = {name: size for size, names in SIZES.items() for name in names.split() if hasattr(default, name)}
        own = {name: size for name, size in (sizes | OWN_SIZES.get(kind, {})).items() if size is not None}
        config = type(default)(**own)
        if not hasattr(config, "vocab_size"):
            return None
        try:
            with torch.device("meta"):
                empty = transformers.AutoModel.from_config(config)
            if sum(each.numel() for each in empty.parameters()) > MOST_PARAMETERS:
                return None
        except (NotImplementedError, RuntimeError):
            pass  # Some models cannot be made without numbers.
        torch.manual_seed(0)
        try:
            model = transformers.AutoModel.from_config(config, attn_implementation="eager").eval()
        except ValueError:
            model = transformers.AutoModel.from_config(config).eval()
        if getattr(config, "is_encoder_decoder", False):
            model = model.get_encoder()
        with torch.no_grad():
            for each in model.parameters():
                if each.ndim > 1 and each.requires_grad:
                    each.normal_(0, 0.2)
            model(input_ids=sequence(0)["input_ids"])
    except Exception:  # Other libraries, other sizes, images, sounds.
        return None
    return model


def sequence(example):
    ids = np.random.default_rng(example).permutation(40)[: LENGTHS[example]] + 5
    return {"input_ids": torch.tensor(ids)[None], "attention_mask": torch.ones(1, len(ids), dtype=torch.int64)}


def padded(side):
    """The sequences with padding of ones on one side."""
    batch = {"input_ids": torch.ones(4, 9, dtype=torch.int64), "attention_mask": torch.zeros(4, 9, dtype=torch.int64)}
    for example, length in enumerate(LENGTHS):
        places = slice(0, length) if side == "right" else slice(9 - length, 9)
        for name, value in sequence(example).items():
            batch[name][example, places] = value[0]
    return batch


def read(model, batch, **options):
    """First and last layer of those that have attention, and their numbers."""
    layers = (0, 3)
    try:
        return ba.attention.from_transformers(model, batch, layers, **options), layers
    except BayesattnError as error:
        if not (named := re.search(r"layers with attention, \[([\d, ]+)\]", str(error))):
            raise
    numbers = [int(number) for number in named[1].split(", ")]
    layers = tuple(sorted({numbers[0], numbers[-1]}))
    return ba.attention.from_transformers(model, batch, layers, **options), layers


def compared(model):
    """Largest relative deviation between padding on the right, on the left and single sequences without padding."""
    renormalise = 0.9 if "sinks" in "".join(name for name, _ in model.named_parameters()) else 1e-3
    right, layers = read(model, padded("right"), renormalise=renormalise)
    left, _ = read(model, padded("left"), renormalise=renormalise, batch_size=1)
    worst = 0.0
    for example, length in enumerate(LENGTHS):
        with torch.no_grad():
            own = model(**sequence(example), output_attentions=True, output_hidden_states=True, return_dict=True)
        patterns = [each[0].double().numpy() for each in own.attentions if each is not None]
        patterns = patterns if len(patterns) > 2 else dict(zip(layers, patterns, strict=True))
        for found, start in ((right, 0), (left, 9 - length)):
            places = slice(start, start + length)
            state = own.hidden_states[layers[0]][0].numpy()
            worst = max(worst, np.abs(found.inputs[example, places] - state).max() / np.abs(state).max())
            for matrix, layer in zip(found.matrices, layers, strict=True):
                pattern = patterns[layer] / patterns[layer].sum(-1, keepdims=True)
                worst = max(worst, np.abs(matrix[example][:, places, places] - pattern).max())
    return float(worst)


def outcomes(kinds):
    """What came of each kind of model that can be made: the deviation, or a sentence."""
    found = {}
    for kind in kinds:
        if (model := tiny(kind)) is not None:
            try:
                found[kind] = compared(model)
            except BayesattnError as error:
                found[kind] = str(error)
    return found


def test_padding_on_either_side_and_none_agree():
    found = outcomes([kind for kind in (*AGREE, *HYBRID, *REFUSED) if kind in transformers.CONFIG_MAPPING])
    print(transformers.__version__, found)
    assert {"bart", "gpt2", "jamba", "openai-gpt", "roberta", "xlnet", *REFUSED} <= found.keys()
    for kind, outcome in found.items():
        if kind in REFUSED:
            assert re.search(REFUSED[kind], outcome), (kind, outcome)
        else:
            assert isinstance(outcome, float), (kind, outcome)
            assert outcome < 1e-5, (kind, outcome)


@pytest.mark.heavy
def test_every_model_of_the_registry_agrees_or_is_refused():
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    found = outcomes(MODEL_MAPPING_NAMES)
    print(transformers.__version__, *found.items(), sep="\n")
    agree = [kind for kind, outcome in found.items() if isinstance(outcome, float)]
    assert len(agree) > 70
    assert not {kind: found[kind] for kind in agree if not found[kind] < 1e-5}
    assert all("\n" not in outcome for outcome in found.values() if isinstance(outcome, str))


@pytest.mark.parametrize("kind", HYBRID)
def test_attention_is_paired_with_the_states_of_its_own_layer(kind):
    if kind not in transformers.CONFIG_MAPPING or (model := tiny(kind)) is None:
        pytest.skip(f"this version has no such model: {kind}")
    batch, seen, inputs = sequence(0), {}, {}

    def keep(layer):
        def hook(_, given, named, output):
            outputs = output if isinstance(output, tuple) else (output,)
            found = [each for each in outputs if isinstance(each, torch.Tensor) and each.shape[1:] == (4, 9, 9)]
            seen.update({layer: found[0]} if found else {})

        return hook

    hooks = [
        module.register_forward_hook(keep(int(number[1])), with_kwargs=True)
        for name, module in model.named_modules()
        if (number := re.match(r"layers\.(\d+)\b", name))
    ]
    hooks += [
        block.register_forward_pre_hook(lambda _, given, layer=layer: inputs.update({layer: given[0].clone()}))
        for layer, block in enumerate(model.layers)
    ]
    with torch.no_grad():
        model(**batch, output_attentions=True)
    for hook in hooks:
        hook.remove()
    assert sorted(seen) == [1, 3]
    for layer in (1, -1):
        found = ba.attention.from_transformers(model, batch, (layer,))
        np.testing.assert_allclose(found.matrices[0], seen[layer % 4], atol=1e-6)
        np.testing.assert_allclose(found.inputs, inputs[layer % 4], atol=1e-6)
        assert found.head_names[0][0] == f"{layer % 4}.0"
    for layer in (0, 2):
        with pytest.raises(BayesattnError, match=rf"layers with attention, \[1, 3\], got \[{layer}\]"):
            ba.attention.from_transformers(model, batch, (layer,))
