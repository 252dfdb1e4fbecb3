#include <algorithm>
#include <utility>

#include "model/pickle_machine.h"

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
    "addict.addict.Dict",
    "argparse.Namespace",
    "collections.Counter",
    "collections.deque",
    "copyreg._reconstructor",
    "datetime.date",
    "datetime.datetime",
    "datetime.timedelta",
    "datetime.timezone",
    "decimal.Decimal",
    "detectron2.config.config.CfgNode",
    "easydict.EasyDict",
    "fractions.Fraction",
    "fvcore.common.config.CfgNode",
    "lightning.fabric.utilities.data.AttributeDict",
    "lightning_fabric.utilities.data.AttributeDict",
    "ml_collections.config_dict.config_dict.ConfigDict",
    "mmcv.utils.config.ConfigDict",
    "mmengine.config.config.ConfigDict",
    "mmengine.logging.history_buffer.HistoryBuffer",
    "numpy._core.multiarray._reconstruct",
    "numpy._core.multiarray.scalar",
    "numpy._core.numeric._frombuffer",
    "numpy.core.multiarray._reconstruct",
    "numpy.core.multiarray.scalar",
    "numpy.core.numeric._frombuffer",
    "numpy.dtype",
    "numpy.ndarray",
    "numpy.random._mt19937.MT19937",  // states of random numbers
    "numpy.random._pcg64.PCG64",
    "numpy.random._pickle.__bit_generator_ctor",
    "numpy.random._pickle.__generator_ctor",
    "numpy.random._pickle.__randomstate_ctor",
    "numpy.random.bit_generator.SeedSequence",
    "numpy.random.bit_generator.__pyx_unpickle_SeedSequence",
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
    "pytorch_lightning.callbacks.early_stopping.EarlyStopping",  // keys of version 1
    "pytorch_lightning.callbacks.model_checkpoint.ModelCheckpoint",
    "pytorch_lightning.utilities.parsing.AttributeDict",
    "random.Random",
    "torch.ComplexDoubleStorage",  // tensors of types that no model here has
    "torch.ComplexFloatStorage",
    "torch.QInt32Storage",
    "torch.QInt8Storage",
    "torch.QUInt8Storage",
    "torch.Size",
    "torch.Tensor",
    "torch._utils._rebuild_meta_tensor_no_storage",
    "torch._utils._rebuild_qtensor",
    "torch._utils._rebuild_sparse_tensor",
    "torch._utils._rebuild_tensor_v3",
    "torch.device",
    "torch.nn.parameter.Parameter",
    "torch.per_channel_affine",
    "torch.per_tensor_affine",
    "torch.serialization._get_layout",
    "torch.storage.UntypedStorage",
    "torch.torch_version.TorchVersion",
    "types.SimpleNamespace",
    "typing.Any",
    "uuid.UUID",
    "yacs.config.CfgNode",
};

constexpr std::string_view kBuiltins[] = {"Ellipsis", "bool",   "bytearray", "bytes", "complex",
                                          "dict",     "float",  "frozenset", "int",   "list",
                                          "long",     "object", "range",     "set",   "slice",
                                          "str",      "tuple",  "unicode",   "xrange"};

constexpr std::string_view kDtypes[] = {"bfloat16",        "bool",        "complex128",
                                        "complex32",       "complex64",   "float16",
                                        "float32",         "float64",     "float8_e4m3fn",
                                        "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
                                        "float8_e8m0fnu",  "int16",       "int32",
                                        "int64",           "int8",        "qint32",
                                        "qint8",           "quint8",      "uint16",
                                        "uint32",          "uint64",      "uint8"};

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
