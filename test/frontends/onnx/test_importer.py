"""Import of ONNX models: structure, constants, older opsets, scopes, and bad models."""

from itertools import pairwise
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from support.programs import names_by_role, ops_of, parse, round_trip

from distir.errors import DistIRError
from distir.frontends.onnx.importer import import_onnx
from distir.program import entry_function, result_names, scope_of
from distir.program.weights import load_weights, weights_file
from distir.tools.files import read_program

F32, I64 = TensorProto.FLOAT, TensorProto.INT64


def value(name: str, shape, element=F32) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, element, shape)


def make_model(
    nodes, inputs, outputs, initializers=(), opset=28, functions=(), **graph
) -> ModelProto:
    initializer = [
        a if isinstance(a, TensorProto) else numpy_helper.from_array(a[1], a[0])
        for a in initializers
    ]
    imports = [helper.make_opsetid("", opset)] if isinstance(opset, int) else opset
    return helper.make_model(
        helper.make_graph(nodes, "g", inputs, outputs, initializer, **graph),
        opset_imports=imports,
        functions=functions,
        ir_version=10,
    )


def relu(x="x", y="y", **kwargs):
    return helper.make_node("Relu", [x], [y], **kwargs)


def linear_model(weight: np.ndarray, opset: int = 28) -> ModelProto:
    """y = x @ h.0.weight."""
    return make_model(
        [helper.make_node("MatMul", ["x", "h.0.weight"], ["y"])],
        [value("x", [2, weight.shape[0]])],
        [value("y", [2, weight.shape[1]])],
        [("h.0.weight", weight)],
        opset,
    )


WEIGHT = np.arange(12, dtype=np.float32).reshape(4, 3)


class TestArguments:
    def test_roles_and_names(self):
        imported = import_onnx(linear_model(WEIGHT))
        round_trip(imported.module)
        assert names_by_role(imported.module) == {
            "input": ["x"],
            "parameter": ["h.0.weight"],
        }
        assert result_names(entry_function(imported.module)) == ["y"]
        np.testing.assert_array_equal(imported.weights["h.0.weight"], WEIGHT)

    def test_small_integers_are_constants(self):
        model = make_model(
            [helper.make_node("Reshape", ["x", "shape"], ["y"])],
            [value("x", [2, 6])],
            [value("y", [3, 4])],
            [("shape", np.array([3, -1]))],
        )
        imported = import_onnx(model)
        round_trip(imported.module)
        assert not imported.weights
        [constant] = ops_of(imported.module, "Constant")
        np.testing.assert_array_equal(constant.attribute("value"), [3, -1])
        [reshape] = ops_of(imported.module, "Reshape")
        assert reshape.results[0].type.get_shape() == (3, 4)

    def test_large_integers_and_constants_are_arguments(self):
        table, mask = np.arange(2048), np.ones((2048,), np.float32)
        model = make_model(
            [
                helper.make_node(
                    "Constant", [], ["mask"], value=numpy_helper.from_array(mask)
                ),
                helper.make_node("Gather", ["table", "x"], ["i"]),
                helper.make_node("Gather", ["mask", "i"], ["y"]),
            ],
            [value("x", [4], I64)],
            [value("y", [4])],
            [("table", table)],
        )
        imported = import_onnx(model)
        round_trip(imported.module)
        assert names_by_role(imported.module) == {
            "input": ["x"],
            "constant": ["table", "mask"],
        }
        np.testing.assert_array_equal(imported.weights["table"], table)
        np.testing.assert_array_equal(imported.weights["mask"], mask)

    def test_scalars_without_a_module_path_are_constants(self):
        model = make_model(
            [
                helper.make_node("Mul", ["x", "scale"], ["s"]),
                helper.make_node("Mul", ["s", "attn.temperature"], ["y"]),
            ],
            [value("x", [4])],
            [value("y", [4])],
            [("scale", np.float32(2)), ("attn.temperature", np.float32(3))],
        )
        assert names_by_role(import_onnx(model).module) == {
            "input": ["x"],
            "parameter": ["attn.temperature"],
        }

    def test_unused_initializers_are_left_out(self):
        model = linear_model(WEIGHT)
        model.graph.initializer.append(numpy_helper.from_array(WEIGHT, "unused"))
        assert list(import_onnx(model).weights) == ["h.0.weight"]

    def test_initializers_listed_as_inputs(self):
        model = linear_model(WEIGHT)
        model.graph.input.append(value("h.0.weight", WEIGHT.shape))
        assert names_by_role(import_onnx(model).module)["input"] == ["x"]

    def test_inputs_and_weights_that_are_outputs(self):
        model = linear_model(WEIGHT)
        model.graph.output.extend([value("x", [2, 4]), value("h.0.weight", [4, 3])])
        imported = import_onnx(model)
        round_trip(imported.module)
        assert result_names(entry_function(imported.module)) == ["y", "x", "h.0.weight"]

    @pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
    def test_element_types(self, dtype):
        weight = WEIGHT.astype(dtype)
        element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        model = linear_model(weight)
        model.graph.input[0].type.tensor_type.elem_type = element
        model.graph.output[0].type.tensor_type.elem_type = element
        imported = import_onnx(model)
        round_trip(imported.module)
        assert imported.weights["h.0.weight"].dtype == dtype

    def test_names_that_are_no_ssa_names(self):
        evil = 'a"b\n`__import__("os")`/../x'
        model = make_model([relu(evil, "/h.0/act/Relu_out")], [value(evil, [2])], [])
        model.graph.output.append(value("/h.0/act/Relu_out", [2]))
        imported = import_onnx(model)
        round_trip(imported.module)
        assert names_by_role(imported.module)["input"] == [evil]


class TestConstantNodes:
    @pytest.mark.parametrize(
        ("attributes", "expected"),
        [
            ({"value_int": 3}, np.array(3)),
            ({"value_ints": [3, 4]}, np.array([3, 4])),
            ({"value_float": 0.5}, np.array(0.5, np.float32)),
            ({"value_floats": [0.5, 1.5]}, np.array([0.5, 1.5], np.float32)),
            ({"value_string": "a"}, np.array("a", object)),
            ({"value_strings": ["a", "b"]}, np.array(["a", "b"], object)),
        ],
    )
    def test_every_spelling(self, attributes, expected):
        element = (
            TensorProto.STRING
            if expected.dtype == object
            else helper.np_dtype_to_tensor_dtype(expected.dtype)
        )
        model = make_model(
            [helper.make_node("Constant", [], ["y"], **attributes)],
            [],
            [value("y", expected.shape, element)],
        )
        imported = import_onnx(model)
        round_trip(imported.module)
        [constant] = ops_of(imported.module, "Constant")
        assert list(constant.properties) == ["value"]
        got = constant.attribute("value")
        assert got.shape == expected.shape and got.dtype == expected.dtype
        assert (got == expected).all()

    def test_sparse(self):
        sparse = helper.make_sparse_tensor(
            helper.make_tensor("values", F32, [2], [1.0, 2.0]),
            helper.make_tensor("indices", I64, [2, 2], [0, 1, 1, 0]),
            [2, 2],
        )
        node = helper.make_node("Constant", [], ["y"], sparse_value=sparse)
        [constant] = ops_of(
            import_onnx(make_model([node], [], [value("y", [2, 2])])).module, "Constant"
        )
        np.testing.assert_array_equal(constant.attribute("value"), [[0, 1], [2, 0]])

    def test_sparse_initializer(self):
        sparse = helper.make_sparse_tensor(
            helper.make_tensor("h.0.weight", F32, [2], [1.0, 2.0]),
            helper.make_tensor("indices", I64, [2], [1, 2]),
            [2, 2],
        )
        model = linear_model(np.zeros((2, 2), np.float32))
        del model.graph.initializer[:]
        model.graph.sparse_initializer.append(sparse)
        imported = import_onnx(model)
        np.testing.assert_array_equal(imported.weights["h.0.weight"], [[0, 1], [2, 0]])


class TestCanonicalForms:
    def test_identity_is_removed(self):
        nodes = [helper.make_node("Identity", ["x"], ["i"]), relu("i")]
        imported = import_onnx(make_model(nodes, [value("x", [2])], [value("y", [2])]))
        assert [op.name for op in ops_of(imported.module)] == ["onnx.Relu"]

    def test_identity_of_a_parameter_is_a_parameter(self):
        """What the older exporter makes of two parameters with equal values."""
        nodes = [
            helper.make_node("Identity", ["h.0.bias"], ["h.1.bias"]),
            helper.make_node("Add", ["x", "h.0.bias"], ["a"]),
            helper.make_node("Add", ["a", "h.1.bias"], ["y"]),
        ]
        bias = np.zeros(4, np.float32)
        imported = import_onnx(
            make_model(
                nodes, [value("x", [4])], [value("y", [4])], [("h.0.bias", bias)]
            )
        )
        round_trip(imported.module)
        assert names_by_role(imported.module)["parameter"] == ["h.0.bias", "h.1.bias"]
        assert list(imported.weights) == ["h.0.bias", "h.1.bias"]

    def test_cast_like_is_a_cast(self):
        node = helper.make_node("CastLike", ["x", "l"], ["y"])
        model = make_model(
            [node], [value("x", [2]), value("l", [], I64)], [value("y", [2], I64)]
        )
        [cast] = ops_of(import_onnx(model).module)
        assert cast.name == "onnx.Cast" and cast.attribute("to") == I64

    @pytest.mark.parametrize(
        ("split", "sizes"), [(np.array(2), [2, 2, 1]), (np.array([1, 4]), [1, 4])]
    )
    def test_split_sequence_is_a_split(self, split, sizes):
        constants = [("split", split), ("first", np.array(0)), ("last", np.array(-1))]
        nodes = [
            helper.make_node("SplitToSequence", ["x", "split"], ["s"], axis=1),
            helper.make_node("SequenceAt", ["s", "first"], ["a"]),
            helper.make_node("SequenceAt", ["s", "last"], ["b"]),
        ]
        outputs = [value("a", [3, sizes[0]]), value("b", [3, sizes[-1]])]
        model = make_model(nodes, [value("x", [3, 5])], outputs, constants)
        imported = import_onnx(model)
        round_trip(imported.module)
        assert not ops_of(imported.module, "SequenceAt", "SplitToSequence")
        [split_op] = ops_of(imported.module, "Split")
        assert [r.type.get_shape() for r in split_op.results] == [(3, n) for n in sizes]
        returned = entry_function(imported.module).get_return_op().operands
        assert list(returned) == [split_op.results[0], split_op.results[-1]]

    def test_a_sequence_with_another_use_stays(self):
        constants = [("split", np.array(1)), ("first", np.array(0))]
        nodes = [
            helper.make_node("SplitToSequence", ["x", "split"], ["s"]),
            helper.make_node("SequenceAt", ["s", "first"], ["a"]),
            helper.make_node("SequenceLength", ["s"], ["n"]),
        ]
        outputs = [value("a", [1, 5]), value("n", [], I64)]
        model = make_model(nodes, [value("x", [3, 5])], outputs, constants)
        imported = import_onnx(model)
        round_trip(imported.module)
        assert len(ops_of(imported.module, "SplitToSequence", "SequenceLength")) == 2


class TestDimensions:
    MODEL = make_model([relu()], [value("x", ["batch", 4])], [value("y", ["batch", 4])])

    def test_named(self):
        imported = import_onnx(self.MODEL, {"batch": 3})
        assert ops_of(imported.module)[0].results[0].type.get_shape() == (3, 4)

    def test_by_position(self):
        model = make_model([relu()], [value("x", [None, 4])], [value("y", [None, 4])])
        imported = import_onnx(model, {"x.0": 3})
        assert ops_of(imported.module)[0].results[0].type.get_shape() == (3, 4)

    def test_two_unnamed_dimensions_differ(self):
        model = make_model(
            [relu()], [value("x", [None, None])], [value("y", [None, 4])]
        )
        imported = import_onnx(model, {"x.0": 3, "x.1": 4})
        assert ops_of(imported.module)[0].results[0].type.get_shape() == (3, 4)

    def test_symbols_of_other_values(self):
        """The exporter's own annotations are bound too."""
        model = make_model(
            [helper.make_node("Reshape", ["x", "s"], ["y"])],
            [value("x", ["batch", 4]), value("s", [2], I64)],
            [value("y", [4, "batch"])],
        )
        imported = import_onnx(model, {"batch": 3})
        assert ops_of(imported.module)[0].results[0].type.get_shape() == (4, 3)

    def test_unresolved(self):
        model = make_model(
            [helper.make_node("MatMul", ["x", "w"], ["y"])],
            [value("x", ["batch", 4]), value("w", [4, None])],
            [value("y", ["batch", None])],
        )
        with pytest.raises(DistIRError) as error:
            import_onnx(model)
        message = str(error.value)
        assert "dimension 0 of input 'x' (batch)" in message
        assert "dimension 1 of input 'w'" in message
        assert "--dim batch=SIZE --dim w.1=SIZE" in message

    def test_unknown_name(self):
        with pytest.raises(DistIRError, match=r"'bath'.*dimensions are batch, x\.0"):
            import_onnx(self.MODEL, {"bath": 3})
        with pytest.raises(DistIRError, match="it has no dynamic dimensions"):
            import_onnx(linear_model(WEIGHT), {"batch": 3})

    def test_sizes_must_be_positive_and_agree(self):
        with pytest.raises(DistIRError, match="give at least 1"):
            import_onnx(self.MODEL, {"batch": 0})
        with pytest.raises(DistIRError, match="gets the sizes 3 and 4; give it one"):
            import_onnx(self.MODEL, {"batch": 3, "x.0": 4})


class TestOpsets:
    def test_conversion(self):
        """ReduceSum took its axes as an attribute before opset 13, Softmax too."""
        nodes = [
            helper.make_node(
                "ReduceSum", ["x"], ["r"], axes=[1], name="/h.0/ReduceSum"
            ),
            helper.make_node("Squeeze", ["r"], ["y"], axes=[1], name="/h.0/Squeeze"),
        ]
        model = make_model(nodes, [value("x", [2, 3])], [value("y", [2])], opset=11)
        imported = import_onnx(model)
        round_trip(imported.module)
        reduce, squeeze = ops_of(imported.module, "ReduceSum", "Squeeze")
        assert reduce.results[0].type.get_shape() == (2, 1)
        assert squeeze.results[0].type.get_shape() == (2,)
        assert scope_of(reduce) == scope_of(squeeze) == "h.0"

    def test_metadata_survives_conversion(self):
        node = helper.make_node("Cast", ["x"], ["y"], to=I64)
        for key, text in (
            ("pkg.torch.onnx.name_scopes", "['', 'h', 'h.0', 'to']"),
            ("namespace", ": Net/h: Seq/h.0: Layer/to: aten.to"),
        ):
            del node.metadata_props[:]
            node.metadata_props.add(key=key, value=text)
            model = make_model(
                [node], [value("x", [2])], [value("y", [2], I64)], opset=18
            )
            assert scope_of(ops_of(import_onnx(model).module)[0]) == "h.0"

    def test_large_weights_survive_conversion(self):
        weight = np.random.default_rng(0).standard_normal((64, 64), np.float32)
        model = linear_model(weight, opset=12)
        model.graph.node.append(helper.make_node("ReduceSum", ["y"], ["z"], axes=[1]))
        model.graph.output.append(value("z", [2, 1]))
        np.testing.assert_array_equal(import_onnx(model).weights["h.0.weight"], weight)

    def test_too_new(self):
        with pytest.raises(DistIRError, match="uses opset 99, but DistIR knows"):
            import_onnx(
                make_model([relu()], [value("x", [2])], [value("y", [2])], opset=99)
            )

    @pytest.mark.parametrize("opset", [7, 9, 10])
    def test_old_resize_samples_as_it_did(self, opset: int):
        scales = np.array([1, 1, 2, 2], np.float32)
        node, inputs = (
            helper.make_node("Resize", ["x", "s"], ["y"], mode="linear"),
            ["s"],
        )
        if opset < 10:
            node.op_type = "Upsample"
        if opset < 9:
            node = helper.make_node(
                "Upsample", ["x"], ["y"], mode="linear", scales=scales
            )
            inputs = []
        model = make_model(
            [node],
            [value("x", [1, 1, 2, 3])],
            [value("y", [1, 1, 4, 6])],
            [(name, scales) for name in inputs],
            opset,
        )
        [resize] = ops_of(import_onnx(model).module, "Resize")
        assert resize.attribute("coordinate_transformation_mode") == "asymmetric"
        assert resize.attribute("nearest_mode") == "floor"

    @pytest.mark.parametrize(
        ("operator", "attributes", "message"),
        [
            ("Gather", {"axis": 2}, "axis"),
            ("Split", {"num_outputs": 3}, "num_outputs is 3"),
            ("Einsum", {"equation": "i...>-ji..."}, "no equation"),
            ("ArgMax", {"keepdims": 2}, "'keepdims' must be 0 or 1"),
        ],
    )
    def test_ill_typed_nodes_are_refused(self, operator: str, attributes, message: str):
        inputs = ["x", "i"] if operator == "Gather" else ["x"]
        model = make_model(
            [helper.make_node(operator, inputs, ["y"], **attributes)],
            [value("x", [4, 4]), value("i", [2], I64)],
            [value("y", [4], I64 if operator == "ArgMax" else TensorProto.FLOAT)],
        )
        with pytest.raises(DistIRError, match=message):
            import_onnx(model)

    def test_resize_to_sizes_with_empty_scales(self):
        """Opset 11 had no other way to leave the scales out."""
        model = make_model(
            [helper.make_node("Resize", ["x", "roi", "scales", "sizes"], ["y"])],
            [value("x", [2, 4, 4, 4])],
            [value("y", [2, 4, 8, 8])],
            [
                ("roi", np.zeros(0, np.float32)),
                ("scales", np.zeros(0, np.float32)),
                ("sizes", np.array([2, 4, 8, 8])),
            ],
            11,
        )
        module = import_onnx(model).module
        module.verify()
        [resize] = ops_of(module, "Resize")
        assert resize.input(2) is None and resize.input(3) is not None

    def test_without_a_conversion(self):
        node = helper.make_node("LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml")
        node.attribute.append(helper.make_attribute("classes_strings", ["a", "b"]))
        model = make_model(
            [node],
            [value("x", [2], TensorProto.STRING)],
            [value("y", [2], I64)],
            opset=[helper.make_opsetid("", 28), helper.make_opsetid("ai.onnx.ml", 1)],
        )
        with pytest.raises(DistIRError, match=r"version 1 of its domain.*to version 5"):
            import_onnx(model)


class TestFunctions:
    @staticmethod
    def model(times: int = 1) -> ModelProto:
        """A model with so many local functions of one name."""
        body = helper.make_function(
            "local",
            "Double",
            ["a"],
            ["b"],
            [helper.make_node("Add", ["a", "a"], ["b"])],
            [helper.make_opsetid("", 28)],
        )
        return make_model(
            [helper.make_node("Double", ["x"], ["d"], domain="local"), relu("d")],
            [value("x", [2])],
            [value("y", [2])],
            opset=[helper.make_opsetid("", 28), helper.make_opsetid("local", 1)],
            functions=[body] * times,
        )

    def test_two_of_one_name(self):
        with pytest.raises(DistIRError, match=r"cannot be inlined: .*local::Double"):
            import_onnx(self.model(times=2))

    def test_inlined(self):
        imported = import_onnx(self.model())
        round_trip(imported.module)
        assert [op.name for op in ops_of(imported.module)] == ["onnx.Add", "onnx.Relu"]


def external_model(folder: Path, location: str, **entries: int) -> Path:
    """`linear_model` in a file, with its weight at `location`."""
    model = linear_model(WEIGHT)
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, text in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(text))
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


class TestExternalData:
    @pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16])
    def test_as_onnx_writes_it(self, tmp_path: Path, dtype):
        weight = np.arange(4096).reshape(64, 64).astype(dtype)
        element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        model = linear_model(weight)
        model.graph.input[0].type.tensor_type.elem_type = element
        model.graph.output[0].type.tensor_type.elem_type = element
        path = tmp_path / "model.onnx"
        onnx.save(
            model, path, save_as_external_data=True, location="w.bin", size_threshold=0
        )
        imported = import_onnx(path)
        got = imported.weights["h.0.weight"]
        assert got.dtype == dtype and (got == weight).all()
        assert isinstance(got.base, np.ndarray) and not got.flags.owndata

    def test_in_a_folder_below(self, tmp_path: Path):
        (tmp_path / "data").mkdir()
        (tmp_path / "data/w").write_bytes(b"skipped." + WEIGHT.tobytes())
        path = external_model(tmp_path, "data/w", offset=8, length=48)
        np.testing.assert_array_equal(import_onnx(path).weights["h.0.weight"], WEIGHT)

    def test_missing(self, tmp_path: Path):
        path = external_model(tmp_path, "w.bin")
        with pytest.raises(DistIRError, match=r"w\.bin, which does not exist"):
            import_onnx(path)

    @pytest.mark.parametrize(
        "location", ["", "../w.bin", "a/../../w.bin", "..\\w", "a\0b"]
    )
    def test_outside(self, tmp_path: Path, location: str):
        folder = tmp_path / "model"
        folder.mkdir()
        (tmp_path / "w.bin").write_bytes(WEIGHT.tobytes())
        path = external_model(folder, location)
        with pytest.raises(DistIRError, match="not inside the model's folder"):
            import_onnx(path)

    def test_absolute(self, tmp_path: Path):
        (tmp_path / "w.bin").write_bytes(WEIGHT.tobytes())
        path = external_model(tmp_path, str(tmp_path / "w.bin"))
        with pytest.raises(DistIRError, match="not inside the model's folder"):
            import_onnx(path)

    def test_through_a_link(self, tmp_path: Path):
        folder = tmp_path / "model"
        folder.mkdir()
        (tmp_path / "w.bin").write_bytes(WEIGHT.tobytes())
        (folder / "w.bin").symlink_to(tmp_path / "w.bin")
        path = external_model(folder, "w.bin")
        with pytest.raises(DistIRError, match=r"a symbolic link to .*w\.bin, outside"):
            import_onnx(path)

    @pytest.mark.parametrize("entries", [{"length": 44}, {"offset": 4}, {"offset": -4}])
    def test_wrong_size(self, tmp_path: Path, entries):
        (tmp_path / "w.bin").write_bytes(WEIGHT.tobytes())
        path = external_model(tmp_path, "w.bin", **entries)
        with pytest.raises(DistIRError, match="needs 48 bytes"):
            import_onnx(path)

    def test_without_a_folder(self, tmp_path: Path):
        path = external_model(tmp_path, "w.bin")
        model = onnx.load(path, load_external_data=False)
        with pytest.raises(DistIRError, match="import it from its file"):
            import_onnx(model)


class TestBadModels:
    def test_missing_file(self, tmp_path: Path):
        with pytest.raises(DistIRError, match=r"cannot read the model .*none\.onnx"):
            import_onnx(tmp_path / "none.onnx")
        with pytest.raises(
            DistIRError, match=r"is a folder; give the \.onnx file in it"
        ):
            import_onnx(tmp_path)

    def test_truncated(self, tmp_path: Path):
        content = linear_model(WEIGHT).SerializeToString()
        path = tmp_path / "model.onnx"
        for length in range(len(content)):
            path.write_bytes(content[:length])
            with pytest.raises(DistIRError):
                import_onnx(path)

    @pytest.mark.parametrize("content", [b"", b"\n\n\n", b"hello, world", b"\x00" * 64])
    def test_not_onnx(self, tmp_path: Path, content: bytes):
        path = tmp_path / "model.onnx"
        path.write_bytes(content)
        with pytest.raises(DistIRError, match="is not an ONNX model"):
            import_onnx(path)

    @pytest.mark.parametrize("element", [0, 99])
    def test_inputs_of_no_known_type(self, element: int):
        model = make_model([relu()], [value("x", [2])], [value("y", [2])])
        model.graph.input[0].type.tensor_type.elem_type = element
        with pytest.raises(DistIRError):
            import_onnx(model)

    def test_inputs_that_are_maps(self):
        node = helper.make_node("CastMap", ["x"], ["y"], domain="ai.onnx.ml")
        model = make_model(
            [node],
            [value("x", [2])],
            [value("y", [1, 2])],
            opset=[helper.make_opsetid("", 28), helper.make_opsetid("ai.onnx.ml", 5)],
        )
        entry = model.graph.input[0].type.map_type
        entry.key_type = I64
        entry.value_type.tensor_type.elem_type = F32
        with pytest.raises(
            DistIRError, match=r"input 'x' .*map_type are not supported"
        ):
            import_onnx(model)

    def test_names_that_are_not_text(self, tmp_path: Path):
        content = linear_model(WEIGHT).SerializeToString()
        path = tmp_path / "model.onnx"
        path.write_bytes(content.replace(b"h.0.weight", b"h.0.weigh\xff"))
        with pytest.raises(DistIRError, match=r"h\.0\.weigh.*is not UTF-8 text"):
            import_onnx(path)

    def test_operator_outside_the_standard(self):
        node = helper.make_node(
            "FusedMatMul", ["x"], ["y"], "fused", domain="com.microsoft"
        )
        imports = [helper.make_opsetid("", 28), helper.make_opsetid("com.microsoft", 1)]
        model = make_model([node], [value("x", [2])], [value("y", [2])], opset=imports)
        with pytest.raises(
            DistIRError, match=r"FusedMatMul 'fused' \(domain com.microsoft\)"
        ):
            import_onnx(model)

    def test_operator_that_does_not_exist(self):
        model = make_model(
            [helper.make_node("Frobnicate", ["x"], ["y"])],
            [value("x", [2])],
            [value("y", [2])],
        )
        with pytest.raises(DistIRError, match=r"Frobnicate 'y' \(domain ai.onnx\)"):
            import_onnx(model)

    def test_operator_with_a_body(self):
        branch = helper.make_graph(
            [helper.make_node("Relu", ["x"], ["b"])], "branch", [], [value("b", [2])]
        )
        node = helper.make_node(
            "If", ["c"], ["y"], then_branch=branch, else_branch=branch
        )
        model = make_model(
            [node],
            [value("x", [2]), value("c", [], TensorProto.BOOL)],
            [value("y", [2])],
        )
        with pytest.raises(
            DistIRError, match=r"If 'y' .*has a body.*straight-line code"
        ):
            import_onnx(model)

    def test_invalid_model(self):
        model = linear_model(WEIGHT)
        model.graph.node[0].input[0] = "nothing"
        with pytest.raises(DistIRError, match=r"ONNX model is not valid.*nothing"):
            import_onnx(model)

    def test_operands_that_do_not_fit(self):
        model = linear_model(WEIGHT)
        model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 5
        with pytest.raises(
            DistIRError, match=r"MatMul 'y' .*cannot take these operands"
        ):
            import_onnx(model)

    def test_data_of_a_wrong_size(self):
        model = linear_model(WEIGHT)
        model.graph.initializer[0].dims[0] = 5
        with pytest.raises(DistIRError, match=r"h\.0\.weight"):
            import_onnx(model)


class TestSaving:
    def test_program_and_weights(self, tmp_path: Path):
        path = tmp_path / "model.mlir"
        imported = import_onnx(linear_model(WEIGHT))
        imported.save(path)
        assert not imported.module.attributes  # it stayed as it was
        module = parse(path.read_text())
        file = weights_file(module, path)
        assert file == tmp_path / "model.safetensors"
        np.testing.assert_array_equal(load_weights(file)["h.0.weight"], WEIGHT)

    def test_without_weights(self, tmp_path: Path):
        model = make_model([relu()], [value("x", [2])], [value("y", [2])])
        import_onnx(model).save(tmp_path / "model.mlir")
        assert list(tmp_path.iterdir()) == [tmp_path / "model.mlir"]

    def test_over_its_own_weights(self, tmp_path: Path):
        with pytest.raises(DistIRError, match="give the program the suffix"):
            import_onnx(linear_model(WEIGHT)).save(tmp_path / "model.safetensors")

    def test_into_a_missing_folder(self, tmp_path: Path):
        with pytest.raises(DistIRError, match="cannot write"):
            import_onnx(linear_model(WEIGHT)).save(tmp_path / "none/model.mlir")


def test_names_that_printers_number_are_read_back(tmp_path: Path) -> None:
    """Scopes and numbers are cut off names, which leaves `mul`, `mul` and `mul_1`."""
    outputs = ["x", "a/mul", "b/mul", "mul_1_2"]
    nodes = [
        helper.make_node("Neg", [before], [after])
        for before, after in pairwise(outputs)
    ]
    inputs, results = (
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2])]
        for name in ("x", "mul_1_2")
    )
    graph = helper.make_graph(nodes, "graph", inputs, results)
    imported = import_onnx(helper.make_model(graph))
    imported.save(tmp_path / "model.mlir")
    assert len(ops_of(read_program(tmp_path / "model.mlir"), "Neg")) == 3
