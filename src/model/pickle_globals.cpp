#include "model/pickle_globals.h"

#include <algorithm>
#include <utility>

namespace saturate {
namespace {

using enum PickleGlobal;

constexpr std::pair<std::string_view, KnownGlobal> kFunctions[] = {
    {"torch.DoubleStorage", {kStorage, "F64"}},
    {"torch.FloatStorage", {kStorage, "F32"}},
    {"torch.HalfStorage", {kStorage, "F16"}},
    {"torch.BFloat16Storage", {kStorage, "BF16"}},
    {"torch.LongStorage", {kStorage, "I64"}},
    {"torch.IntStorage", {kStorage, "I32"}},
    {"torch.ShortStorage", {kStorage, "I16"}},
    {"torch.CharStorage", {kStorage, "I8"}},
    {"torch.ByteStorage", {kStorage, "U8"}},
    {"torch.BoolStorage", {kStorage, "BOOL"}},
    {"torch._utils._rebuild_tensor", {kTensor}},  // before torch 0.4
    {"torch._utils._rebuild_tensor_v2", {kTensor}},
    {"torch._utils._rebuild_parameter", {kParameter}},
    {"torch._utils._rebuild_parameter_with_state", {kParameter}},
    {"torch._tensor._rebuild_from_type_v2", {kFromType}},  // a tensor that has attributes
    {"collections.OrderedDict", {kDict}},
    {"collections.defaultdict", {kDict}},
};

// Other values that training scripts save beside tensors. Nothing is ever called, so security does
// not depend on this list; it only rejects files that would run code elsewhere.
constexpr std::string_view kPassedOver[] = {
    "_codecs.encode",  // bytes, in protocols before 3
    "argparse.Namespace",
    "collections.Counter",
    "collections.deque",
    "copyreg._reconstructor",
    "datetime.date",
    "datetime.datetime",
    "datetime.timedelta",
    "datetime.timezone",
    "easydict.EasyDict",
    "lightning.fabric.utilities.data.AttributeDict",
    "lightning_fabric.utilities.data.AttributeDict",
    "numpy._core.multiarray._reconstruct",
    "numpy._core.multiarray.scalar",
    "numpy._core.numeric._frombuffer",
    "numpy.core.multiarray._reconstruct",
    "numpy.core.multiarray.scalar",
    "numpy.core.numeric._frombuffer",
    "numpy.dtype",
    "numpy.ndarray",
    "omegaconf.base.ContainerMetadata",
    "omegaconf.base.Metadata",
    "omegaconf.dictconfig.DictConfig",
    "omegaconf.listconfig.ListConfig",
    "omegaconf.nodes.AnyNode",
    "pathlib.Path",
    "pathlib.PosixPath",
    "pathlib.PurePosixPath",
    "pathlib.PureWindowsPath",
    "pathlib.WindowsPath",
    "pathlib._local.PosixPath",  // Python 3.13
    "pathlib._local.WindowsPath",
    "pytorch_lightning.utilities.parsing.AttributeDict",
    "torch.Size",
    "torch.Tensor",
    "torch.device",
    "torch.nn.parameter.Parameter",
    "torch.serialization._get_layout",
    "torch.torch_version.TorchVersion",
    "types.SimpleNamespace",
    "typing.Any",
    "yacs.config.CfgNode",
};

constexpr std::string_view kBuiltins[] = {
    "bool", "bytearray", "bytes", "complex", "dict",  "float", "frozenset", "int",     "list",
    "long", "object",    "range", "set",     "slice", "str",   "tuple",     "unicode", "xrange"};

constexpr std::string_view kDtypes[] = {
    "bfloat16", "bool",  "complex128", "complex64", "float16", "float32",       "float64",
    "int16",    "int32", "int64",      "int8",      "uint8",   "float8_e4m3fn", "float8_e5m2"};

bool is_in(std::string_view text, const auto& list) {
  return std::ranges::find(list, text) != std::end(list);
}

// Whether `name` is `module` and a dot before one of `list`.
bool is_of(std::string_view name, std::string_view module, const auto& list) {
  return name.starts_with(module) && is_in(name.substr(module.size()), list);
}

}  // namespace

KnownGlobal known_global(const std::string& name) {
  for (const auto& [known, global] : kFunctions)
    if (name == known) return global;
  // Python 2's names for the same.
  if (name == "copy_reg._reconstructor" || is_of(name, "__builtin__.", kBuiltins) ||
      is_of(name, "builtins.", kBuiltins) || is_of(name, "torch.", kDtypes) ||
      is_in(name, kPassedOver) || (name.starts_with("numpy.dtypes.") && name.ends_with("DType")))
    return {kOther};
  return {};
}

}  // namespace saturate
