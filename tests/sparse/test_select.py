"""`--update` in all its forms, and scheme files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from testing.networks import models
from testing.networks.models import Network
from tests.e2e import chain
from tests.e2e.gradients import largest_error
from tests.frontend.nets import Net
from tests.training import nets
from tinytrain_compile.driver.summary import layer_updates
from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend import FrontendOptions
from tinytrain_compile.ir.imported import ImportedModel
from tinytrain_compile.ir.stages import ChannelSlice
from tinytrain_compile.sparse import PRIOR, layer_ways, layers_of, resolve_update
from tinytrain_compile.sparse.scheme import load_scheme
from tinytrain_compile.sparse.select import entry_updates


@pytest.fixture(scope="module")
def spotting() -> ImportedModel:
    return chain.imported(models.ds_cnn(8, 2, (12, 6)))


@pytest.fixture(scope="module")
def encoder() -> ImportedModel:
    return chain.imported(models.transformer(4, 8, 2))


def chosen(model: ImportedModel, spec: str) -> set[str]:
    return set(resolve_update(model.graph, spec).updates)


def failure(model: ImportedModel, spec: str) -> CompileError:
    with pytest.raises(CompileError) as caught:
        resolve_update(model.graph, spec)
    return caught.value


def scheme(tmp_path: Path, *entries: str) -> str:
    path = tmp_path / "scheme.toml"
    path.write_text("".join(f"[[update]]\n{entry}\n" for entry in entries))
    return str(path)


LAYERS = ["stem", "dw0", "pw0", "dw1", "pw1"]
WEIGHTS, BIASES = {f"{name}_weight" for name in LAYERS}, {f"{name}_beta" for name in LAYERS}
HEAD = {"fc_weight", "fc_bias"}


# ---- layers ---------------------------------------------------------------------------------------------------------


def test_layers_in_topological_order(spotting: ImportedModel) -> None:
    layers = layers_of(spotting.graph)
    assert [layer.name for layer in layers] == [*(f"{name}/Conv" for name in LAYERS), "fc/Gemm"]
    assert [v.name for v in layers[1].weights] == ["dw0_weight"]
    assert [v.name for v in layers[1].biases] == ["dw0_beta"], "a folded normalisation's shift is the layer's bias"


def test_layers_of_a_transformer(encoder: ImportedModel) -> None:
    """Scales and shifts and position table are layers of their own nodes; the bias behind a MatMul is its layer's."""
    layers = {layer.name: layer for layer in layers_of(encoder.graph)}
    assert next(iter(layers)) == "embed/Add"
    assert {"norm1/Norm", "norm2/Norm", "query/MatMul", "head/Gemm"} <= set(layers)
    query = layers["query/MatMul"]
    assert [v.name for v in query.weights] == ["query_weight"]
    assert [v.name for v in query.biases] == ["query_bias"]
    norm = layers["norm1/Norm"]
    assert [v.name for v in norm.weights] == ["norm1_gamma"]
    assert [v.name for v in norm.biases] == ["norm1_beta"]
    assert "scores/Mul" not in layers, "a scalar factor of exported attention is no parameter"
    assert not {"gelu/Half", "gelu/Scale", "gelu/Add"} & set(layers)


# ---- named sets -----------------------------------------------------------------------------------------------------


def test_all(spotting: ImportedModel) -> None:
    assert chosen(spotting, "all") == WEIGHTS | BIASES | HEAD
    assert all(piece is None for piece in resolve_update(spotting.graph, "all").updates.values())


def test_bias_is_all_biases_and_the_head(spotting: ImportedModel) -> None:
    assert chosen(spotting, "bias") == BIASES | HEAD


def test_head_is_the_last_matrix(spotting: ImportedModel, encoder: ImportedModel) -> None:
    assert chosen(spotting, "head") == HEAD
    assert chosen(encoder, "head") == {"head_weight", "head_bias"}


def test_head_skips_what_has_no_matrix() -> None:
    """A scale behind the classifier is not the head."""
    net = Network("scaled", "float[1, 4] x", "float[1, 3] y")
    logits = net.dense("fc", "x", 4, 3)
    net.node("scale", f"y = Mul ({logits}, {net.near('temperature', 1.0, 0.1, 3)})")
    model = chain.imported(net.model())
    assert chosen(model, "head") == {"fc_weight", "fc_bias"}
    assert chosen(model, "last:1") == {"temperature"}


@pytest.mark.parametrize("count", [1, 2, 4])
def test_last(count: int, spotting: ImportedModel) -> None:
    kept = LAYERS[len(LAYERS) - count + 1 :]
    wanted = HEAD | {f"{name}_{part}" for name in kept for part in ("weight", "beta")}
    assert chosen(spotting, f"last:{count}") == wanted


def test_last_more_than_there_are(spotting: ImportedModel) -> None:
    assert chosen(spotting, "last:99") == chosen(spotting, "all")
    assert chosen(spotting, "last:006") == chosen(spotting, "all")


@pytest.mark.parametrize("spec", ["last:0", "last:-1", "last:", "last:x", "last:1.5", "last:000", "last: 1", "last:٣"])
def test_senseless_last(spec: str, spotting: ImportedModel) -> None:
    assert failure(spotting, spec).code == "E0101"


# ---- globs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "layers"),
    [
        *(("dw0/Conv", ["dw0"]), ("dw*", ["dw0", "dw1"]), ("*0/Conv", ["dw0", "pw0"])),
        *((" pw0/Conv , stem/Conv ", ["stem", "pw0"]), ("[dp]w1/*", ["dw1", "pw1"]), ("?w?/Conv", LAYERS[1:])),
    ],
)
def test_globs(spec: str, layers: list[str], spotting: ImportedModel) -> None:
    assert chosen(spotting, spec) == {f"{name}_{part}" for name in layers for part in ("weight", "beta")}


def test_order_of_updates_is_that_of_the_graph(spotting: ImportedModel) -> None:
    assert list(resolve_update(spotting.graph, "pw1/*,stem/*").updates) == [
        *("stem_weight", "stem_beta", "pw1_weight", "pw1_beta")
    ]


def test_glob_characters_in_names_are_names_first() -> None:
    """A node that is called like a pattern can be named."""
    net = Network("odd", "float[1, 4] x", "float[1, 3] y")
    model = net
    model.dense("fc", "x", 4, 3)
    model.node("out", "y = Identity (fc)")
    proto = model.model()
    proto.graph.node[0].name = "block[0]/fc"
    assert chosen(chain.imported(proto), "block[0]/fc") == {"fc_weight", "fc_bias"}


def test_nearest_names(spotting: ImportedModel) -> None:
    error = failure(spotting, "dw0/Cnov")
    assert error.code == "E0301"
    assert "nearest names: " in str(error)
    assert str(error).split("nearest names: ")[1].split(", ")[0] == "dw0/Conv"
    assert failure(spotting, "dw0/*,nothing*").code == "E0301", "every pattern must match"
    assert failure(spotting, "pool").code == "E0301", "a node without parameters is not found"
    assert failure(spotting, ",").code == "E0101"


def test_frozen_layers_are_called_frozen(tmp_path: Path) -> None:
    proto = models.ds_cnn(8, 2, (12, 6))
    some = chain.imported(proto, FrontendOptions(frozen=("dw0*",)))
    for spec in ("dw0/Conv", "dw0_weight", scheme(tmp_path, 'layer = "dw0/Conv"\nweight = "all"')):
        error = failure(some, spec)
        assert error.code == "E0301"
        assert error.what.endswith("matches only frozen layers: dw0/Conv") and "--frozen" in str(error)
    error = failure(chain.imported(proto, FrontendOptions(frozen=("*",))), "all")
    assert error.code == "E0303" and "all are frozen" in error.what and "--frozen" in str(error)


# ---- schemes --------------------------------------------------------------------------------------------------------


def test_scheme_forms(spotting: ImportedModel, tmp_path: Path) -> None:
    path = scheme(
        tmp_path,
        'layer = "stem/Conv"\nbias = true',
        'layer = "pw0/Conv"\nweight = 3\naxis = "in"',
        'layer = "dw1/Conv"\nweight = [5, 2, 2]',
        'layer = "pw1/Conv"\nweight = "all"',
        'layer = "fc/Gemm"\nbias = true\nweight = 12',
    )
    plan = resolve_update(spotting.graph, path)
    assert plan.updates == {
        "stem_beta": None,
        "pw0_weight": ChannelSlice("in", (0, 1, 2)),
        "dw1_weight": ChannelSlice("out", (2, 5)),
        "pw1_weight": None,
        "fc_weight": None,
        "fc_bias": None,
    }
    assert plan.label == "scheme.toml"


def test_later_entries_override(spotting: ImportedModel, tmp_path: Path) -> None:
    """Entry by entry, whole: a later one for the same layer replaces all that an earlier one said."""
    path = scheme(
        tmp_path,
        'layer = "*/Conv"\nbias = true\nweight = "all"',
        'layer = "dw*"\nbias = true',
        'layer = "dw1/Conv"\nweight = 2',
        'layer = "stem/Conv"\nweight = 0',
    )
    assert resolve_update(spotting.graph, path).updates == {
        "dw0_beta": None,
        "pw0_weight": None,
        "pw0_beta": None,
        "dw1_weight": ChannelSlice("out", (0, 1)),
        "pw1_weight": None,
        "pw1_beta": None,
    }


def test_depthwise_has_no_input_axis(spotting: ImportedModel, tmp_path: Path) -> None:
    error = failure(spotting, scheme(tmp_path, 'layer = "dw0/Conv"\nweight = 2\naxis = "in"'))
    assert error.code == "E0302"
    assert "'in'" in str(error)
    assert "dw0/Conv" in str(error)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[update]\nlayer = "a"\n', "has [update] in single brackets: each layer is an entry [[update]]"),
        ("[[update]]\nlayer = conv3\n", 'put quotes around a text: layer = "conv3"'),
        ("[[update]]\nlayer = 'a'\nbias = True\n", "write bias = true"),
    ],
)
def test_slips_in_a_scheme_file_are_mended_in_the_message(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "scheme.toml").write_text(text)
    with pytest.raises(CompileError) as caught:
        load_scheme(tmp_path / "scheme.toml")
    assert caught.value.code == "E0302" and said in str(caught.value)
    with pytest.raises(CompileError, match=r"no\.toml: there is no such file; give the path of a scheme file"):
        load_scheme(tmp_path / "no.toml")


def test_too_many_channels_are_an_error_before_they_take_memory(spotting: ImportedModel, tmp_path: Path) -> None:
    error = failure(spotting, scheme(tmp_path, f'layer = "pw0/Conv"\nweight = {2**62}'))
    assert error.code == "E0302" and f"weight = {2**62} asks for more than its 8 channels" in error.what
    assert error.where == "scheme.toml, entry 1: pw0/Conv" and "write 8 at most" in str(error)
    error = failure(spotting, scheme(tmp_path, 'layer = "pw0/Conv"\nweight = [0, 8]'))
    assert 'names channel 8 of its 8 channels (axis = "out"); the last one is 7' in str(error)


def test_slices_of_what_has_no_channels(encoder: ImportedModel, tmp_path: Path) -> None:
    assert failure(encoder, scheme(tmp_path, 'layer = "norm1/Norm"\nweight = 2')).code == "E0302"
    path = scheme(tmp_path, 'layer = "norm1/Norm"\nweight = "all"\nbias = true')
    assert chosen(encoder, path) == {"norm1_gamma", "norm1_beta"}


def test_slice_of_a_transposed_convolution(tmp_path: Path) -> None:
    """Axes are the layer's: "out" are the channels that it makes."""
    net = Network("up", "float[1, 3, 4, 4] x", "float[1, 5, 8, 8] y")
    weight = net.weight("up_weight", 3, 5, 2, 2)
    net.node("up", f"y = ConvTranspose <strides = [2, 2]> (x, {weight})")
    model = chain.imported(net.model())
    for axis, total in (("out", 5), ("in", 3)):
        plan = resolve_update(model.graph, scheme(tmp_path, f'layer = "up"\nweight = 2\naxis = "{axis}"'))
        (facts,) = layer_updates(model.graph, plan)
        assert (facts.channels, facts.axis, facts.elements) == (2, axis, 60 * 2 // total)
        error = failure(model, scheme(tmp_path, f'layer = "up"\nweight = {total + 1}\naxis = "{axis}"'))
        assert f'its {total} channels (axis = "{axis}"); write {total} at most' in str(error)


def test_ways_to_train_a_transposed_convolution() -> None:
    """Each can be asked for, and trains as many numbers as its gain is computed of."""
    net = Network("up", "float[1, 3, 4, 4] x", "float[1, 320] y")
    weight, dense = net.weight("up_weight", 3, 5, 2, 2), net.weight("dense_weight", 320, 320)
    net.node("up", f"up = ConvTranspose <strides = [2, 2]> (x, {weight})")
    net.node("flat", "flat = Flatten (up)")
    net.node("dense", f"y = MatMul (flat, {dense})")
    graph = chain.imported(net.model()).graph
    ways = layer_ways(graph, PRIOR)[0].ways[1:]
    assert {way.entry.axis for way in ways} == {"in", "out"}
    for way in ways:
        (updates,) = entry_updates(layers_of(graph)[0], way.entry).values()
        total = 5 if way.entry.axis == "out" else 3
        assert way.elements == (60 if updates is None else 60 * len(updates.channels) // total)


def test_what_the_report_says_of_a_scheme(spotting: ImportedModel, tmp_path: Path) -> None:
    path = scheme(
        tmp_path, 'layer = "pw0/Conv"\nweight = 3\naxis = "in"\nbias = true', 'layer = "fc/Gemm"\nbias = true'
    )
    facts = {f.name: f for f in layer_updates(spotting.graph, resolve_update(spotting.graph, path))}
    assert (facts["pw0/Conv"].elements, facts["pw0/Conv"].total_elements) == (8 * 3 + 8, 8 * 8 + 8)
    assert (facts["pw0/Conv"].channels, facts["pw0/Conv"].axis, facts["pw0/Conv"].bias) == (3, "in", True)
    assert (facts["fc/Gemm"].elements, facts["fc/Gemm"].weight, facts["fc/Gemm"].bias) == (12, False, True)
    assert facts["stem/Conv"].elements == 0


def test_slices_keep_the_rest_in_flash(tmp_path: Path) -> None:
    path = scheme(tmp_path, 'layer = "pw0/Conv"\nweight = [1, 6]\naxis = "in"')
    train = chain.train_graph(models.ds_cnn(8, 1, (12, 6)), path)
    whole = chain.imported(models.ds_cnn(8, 1, (12, 6))).graph.constants["pw0_weight"]
    state = {value.name for value in train.graph.state}
    assert state == {"learning_rate", "pw0_weight.updated"}
    np.testing.assert_array_equal(train.graph.constants["pw0_weight.updated"], whole[..., [1, 6]])
    np.testing.assert_array_equal(train.graph.constants["pw0_weight.frozen"], whole[..., [0, 2, 3, 4, 5, 7]])
    assert "pw0_weight" not in train.graph.constants


def test_only_needed_input_channels_are_kept(tmp_path: Path) -> None:
    """With axis "in" the weight gradient reads the chosen channels of the layer's input, not all of it."""
    path = scheme(tmp_path, 'layer = "pw0/Conv"\nweight = [1, 6]\naxis = "in"')
    train = chain.train_graph(models.ds_cnn(8, 1, (12, 6)), path)
    gradient = next(node for node in train.graph.nodes if node.op == "ConvGradWeight")
    assert gradient.inputs[0].shape[3] == 2
    assert gradient.outputs[0].shape == (8, 1, 1, 2)


def test_published_form_is_read(tmp_path: Path) -> None:
    entries = load_scheme(Path(scheme(tmp_path, '# a comment\nlayer = "a/*"\nbias = true\nweight = 7\naxis = "in"')))
    assert len(entries) == 1
    assert (entries[0].layer, entries[0].bias, entries[0].weight, entries[0].axis) == ("a/*", True, 7, "in")


def test_no_slice_of_a_weight_that_is_also_used_in_another_arrangement(tmp_path: Path) -> None:
    """The other use would keep a frozen copy of the whole."""
    net = Network("tied", "float[1, 6] x", "float[1, 6] y")
    weight, bias = net.weight("w", 4, 6), net.weight("b", 4)
    net.node("encode", f"h = Gemm <transB = 1> (x, {weight}, {bias})")
    net.node("decode", f"y = Gemm (h, {weight})")
    model = chain.imported(net.model())
    error = failure(model, scheme(tmp_path, 'layer = "encode"\nweight = 2'))
    assert error.code == "E0302"
    assert "decode" in str(error)
    assert chosen(model, scheme(tmp_path, 'layer = "encode"\nweight = "all"')) == {"w"}


def test_a_slice_of_a_weight_that_two_layers_use_alike_is_one(tmp_path: Path) -> None:
    train = chain.train_graph(nets.shared_weight(), scheme(tmp_path, 'layer = "first/Gemm"\nweight = 2'))
    assert largest_error(train)[0] < 1e-6
    assert [old.name for old, _ in train.graph.updates] == ["tied.updated"]


def test_a_shared_weight_belongs_to_the_first_layer_that_reads_it(tmp_path: Path) -> None:
    """It is trained by all its uses, or not at all."""
    model = chain.imported(nets.shared_weight())
    assert chosen(model, "last:1") == {"head_weight", "head_bias"}
    assert chosen(model, "last:2") == {"tied", "tied_bias", "head_weight", "head_bias"}
    assert largest_error(chain.train_graph(model, "last:2"))[0] < 1e-6


# ---- a dense layer in two nodes -------------------------------------------------------------------------------------


def keras_dense() -> ImportedModel:
    """MatMul and Add, as Keras and tf2onnx have it."""
    net = Net("float[1, 6] x", "float[1, 4] y")
    net.add(f"m = MatMul (x, {net.weight('m_w', 6, 5)})")
    net.add(f"a = Add (m, {net.weight('m_b', 5)})")
    net.add("r = Relu (a)")
    net.add(f"n = MatMul (r, {net.weight('n_w', 5, 4)})")
    net.add(f"y = Add ({net.weight('n_b', 4)}, n)")
    return chain.imported(net.model())


def test_the_last_layer_of_a_keras_network_is_weight_and_bias() -> None:
    model = keras_dense()
    assert len(layers_of(model.graph)) == 2
    assert chosen(model, "last:1") == chosen(model, "head") == {"n_w", "n_b"}
    assert chosen(model, "bias") == {"m_b", "n_w", "n_b"}


def test_either_of_its_nodes_names_it() -> None:
    model = keras_dense()
    names = [layer.names for layer in layers_of(model.graph)]
    assert names == [("MatMul_m", "Add_a"), ("MatMul_n", "Add_y")]
    assert chosen(model, "Add_y") == chosen(model, "MatMul_n") == {"n_w", "n_b"}


def test_an_add_of_a_product_that_others_read_too_is_a_layer_of_its_own() -> None:
    net = Net("float[1, 6] x", "float[1, 5] y")
    net.add(f"m = MatMul (x, {net.weight('m_w', 6, 5)})")
    net.add(f"a = Add (m, {net.weight('m_b', 5)})")
    net.add("y = Mul (m, a)")
    assert [layer.name for layer in layers_of(chain.imported(net.model()).graph)] == ["MatMul_m", "Add_a"]
