// The evaluation forward as an ONNX graph. Its program, which torch traced, is run operator by
// operator on two batches of different sizes; every operator whose result depends on the images
// becomes nodes of the graph. Sizes, branches and lists are thereby plain values.
#include <ATen/core/grad_mode.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/max.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/remainder.h>
#include <c10/util/Exception.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/passes/dead_code_elimination.h>
#include <torch/csrc/jit/passes/inliner.h>

#include <algorithm>
#include <optional>

#include "base/files.h"
#include "base/printable.h"
#include "model/export_model.h"
#include "model/onnx_graph.h"
#include "saturate/weights.h"

namespace saturate {
namespace {

namespace jit = torch::jit;
using c10::IValue;

constexpr int kMostLevels = 64;

// These return facts about tensors, not their contents.
constexpr std::string_view kFacts[] = {
    "aten::size",     "aten::dim",     "aten::len",           "aten::numel",
    "prim::dtype",    "prim::device",  "prim::layout",        "aten::is_floating_point",
    "aten::__is__",   "prim::is_cuda", "aten::__isnot__",     "aten::stride",
    "aten::sym_size", "prim::shape",   "aten::is_contiguous", "aten::__contains__"};

void add_tensors(const IValue& value, std::vector<at::Tensor>& tensors) {
  if (value.isTensor()) {
    tensors.push_back(value.toTensor());
  } else if (value.isList()) {
    for (const IValue& each : value.toListRef()) add_tensors(each, tensors);
  } else if (value.isTuple()) {
    for (const IValue& each : value.toTupleRef().elements()) add_tensors(each, tensors);
  }
}

std::vector<BothTensors> tensors_of(const std::vector<BothRuns>& values, const OnnxGraph& graph) {
  std::array<std::vector<at::Tensor>, 2> found;
  for (const BothRuns& value : values)
    for (const size_t run : {0, 1}) add_tensors(value[run], found[run]);
  if (found[0].size() != found[1].size()) graph.unsupported("a list as long as the batch");
  std::vector<BothTensors> both;
  for (size_t i = 0; i < found[0].size(); ++i) both.push_back({found[0][i], found[1][i]});
  return both;
}

std::string reason_in(const std::exception& error) {
  const auto* c10_error = dynamic_cast<const c10::Error*>(&error);
  return first_line(c10_error ? c10_error->what_without_backtrace() : error.what());
}

class ProgramRuns {
 public:
  explicit ProgramRuns(OnnxGraph& graph) : graph_(graph) {}

  void set(const jit::Value* value, BothRuns both) { values_[value] = std::move(both); }
  const BothRuns& get(const jit::Value* value) const { return values_.at(value); }

  void run(const jit::Block& block) {
    for (const jit::Node* node : block.nodes()) run(*node);
  }

 private:
  void run(const jit::Node& node);
  void construct(const jit::Node& node);
  void unpack(const jit::Node& node);
  void branch(const jit::Node& node);
  void loop(const jit::Node& node);
  void run_operator(const jit::Node& node);
  std::vector<BothRuns> execute(const jit::Node& node);
  void add_to_graph(const jit::Node& node, std::vector<BothRuns> arguments,
                    const std::vector<BothRuns>& results);
  std::optional<at::Tensor> written_by(const jit::Node& node) const;
  bool decision(const jit::Value* condition) const;

  // Nothing may write this value.
  void keep(const IValue& value) {
    if (value.isTensor() && value.toTensor().has_storage())
      kept_.insert(value.toTensor().storage().unsafeGetStorageImpl());
  }

  std::vector<BothRuns> inputs_of(const jit::Node& node) const {
    std::vector<BothRuns> inputs;
    for (const jit::Value* input : node.inputs()) inputs.push_back(get(input));
    return inputs;
  }

  OnnxGraph& graph_;
  std::unordered_map<const jit::Value*, BothRuns> values_;
  std::set<const c10::StorageImpl*> kept_;  // of weights and constants
};

void ProgramRuns::run(const jit::Node& node) {
  namespace prim = c10::prim;
  switch (node.kind()) {
    case prim::Constant: {
      const IValue constant = jit::toIValue(node.output()).value_or(IValue());
      keep(constant);
      return set(node.output(), {constant, constant});
    }
    case prim::GetAttr: {
      const IValue found = get(node.input())[0].toObject()->getAttr(node.s(c10::attr::name));
      keep(found);
      return set(node.output(), {found, found});
    }
    case prim::ListConstruct:
    case prim::TupleConstruct:
      return construct(node);
    case prim::ListUnpack:
    case prim::TupleUnpack:
      return unpack(node);
    case prim::If:
      return branch(node);
    case prim::Loop:
      return loop(node);
    case prim::unchecked_cast:
      return set(node.output(), get(node.input()));
    case prim::Uninitialized:
      return set(node.output(), {});
    default:
      run_operator(node);
  }
}

void ProgramRuns::construct(const jit::Node& node) {
  const std::vector<BothRuns> inputs = inputs_of(node);
  BothRuns made;
  for (const size_t run : {0, 1}) {
    if (node.kind() == c10::prim::ListConstruct) {
      c10::impl::GenericList list(
          node.output()->type()->expectRef<c10::ListType>().getElementType());
      for (const BothRuns& input : inputs) list.push_back(input[run]);
      made[run] = std::move(list);
    } else {
      std::vector<IValue> elements;
      for (const BothRuns& input : inputs) elements.push_back(input[run]);
      made[run] = c10::ivalue::Tuple::create(std::move(elements));
    }
  }
  set(node.output(), made);
}

void ProgramRuns::unpack(const jit::Node& node) {
  const BothRuns& whole = get(node.input());
  std::vector<BothRuns> parts(node.outputs().size());
  for (const size_t run : {0, 1}) {
    const auto elements = whole[run].isTuple() ? whole[run].toTupleRef().elements().vec()
                                               : whole[run].toListRef().vec();
    if (elements.size() != parts.size()) graph_.unsupported("a list of another length");
    for (size_t i = 0; i < parts.size(); ++i) parts[i][run] = elements[i];
  }
  for (size_t i = 0; i < parts.size(); ++i) set(node.outputs()[i], parts[i]);
}

bool ProgramRuns::decision(const jit::Value* condition) const {
  const BothRuns& both = get(condition);
  if (both[0].toBool() != both[1].toBool())
    graph_.unsupported("a branch that depends on the number of images");
  return both[0].toBool();
}

void ProgramRuns::branch(const jit::Node& node) {
  const jit::Block& block = *node.blocks()[decision(node.input()) ? 0 : 1];
  run(block);
  for (size_t i = 0; i < node.outputs().size(); ++i)
    set(node.outputs()[i], get(block.outputs()[i]));
}

// Inputs: the largest number of turns, whether to begin, values carried; the block's inputs are the
// turn and those values, its outputs whether to go on and the values.
void ProgramRuns::loop(const jit::Node& node) {
  const jit::Block& block = *node.blocks()[0];
  const BothRuns turns = get(node.inputs()[0]);
  if (turns[0] != turns[1]) graph_.unsupported("a loop over the images of a batch");
  std::vector<BothRuns> carried = inputs_of(node);
  carried.erase(carried.begin(), carried.begin() + 2);
  bool goes_on = decision(node.inputs()[1]);
  for (int64_t turn = 0; goes_on && turn < turns[0].toInt(); ++turn) {
    set(block.inputs()[0], {turn, turn});
    for (size_t i = 0; i < carried.size(); ++i) set(block.inputs()[i + 1], carried[i]);
    run(block);
    goes_on = decision(block.outputs()[0]);
    for (size_t i = 0; i < carried.size(); ++i) carried[i] = get(block.outputs()[i + 1]);
  }
  for (size_t i = 0; i < carried.size(); ++i) set(node.outputs()[i], carried[i]);
}

std::vector<BothRuns> ProgramRuns::execute(const jit::Node& node) {
  std::vector<BothRuns> results(node.outputs().size());
  for (const size_t run : {0, 1}) {
    jit::Stack stack;
    for (const jit::Value* input : node.inputs()) stack.push_back(get(input)[run]);
    try {
      node.getOperation()(stack);
    } catch (const std::exception& error) {
      graph_.fail_export(std::string(node.kind().toQualString()) + " fails on " +
                             std::to_string(kRunImages[run]) + " images: " + reason_in(error),
                         "Write a forward that computes no size from the number of images, such as "
                         "flatten(1) in place of view()");
    }
    for (size_t i = 0; i < results.size(); ++i) results[i][run] = stack.at(i);
  }
  return results;
}

// The tensor that an operator writes in place.
std::optional<at::Tensor> ProgramRuns::written_by(const jit::Node& node) const {
  const auto& arguments = node.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto* alias = arguments[i].alias_info();
    const IValue& value = get(node.inputs()[i])[0];
    if (alias && alias->isWrite() && value.isTensor()) return value.toTensor();
  }
  return std::nullopt;
}

void ProgramRuns::run_operator(const jit::Node& node) {
  const std::string name = node.kind().toQualString();
  if (!node.maybeSchema() || node.schema().is_vararg()) graph_.unsupported(name);
  const std::vector<BothRuns> arguments = inputs_of(node);
  const bool from_images = std::ranges::any_of(
      arguments, [&](const BothRuns& value) { return graph_.depends_on_images(value[0]); });
  if (!from_images && node.isNondeterministic()) graph_.unsupported(name + " in evaluation");
  const std::optional<at::Tensor> written = written_by(node);
  if (written && kept_.contains(written->storage().unsafeGetStorageImpl()))
    graph_.unsupported(name + " on its own weights or buffers in evaluation");
  const std::vector<BothRuns> results = execute(node);
  // A constant that is repeated for each image depends on their number.
  const auto grows = [](const BothTensors& tensor) {
    return tensor[0].sizes() != tensor[1].sizes();
  };
  if (from_images || std::ranges::any_of(tensors_of(results, graph_), grows))
    add_to_graph(node, arguments, results);
  for (size_t i = 0; i < results.size(); ++i) set(node.outputs()[i], results[i]);
}

void ProgramRuns::add_to_graph(const jit::Node& node, std::vector<BothRuns> arguments,
                               const std::vector<BothRuns>& results) {
  const std::string name = node.kind().toQualString();
  const std::vector<BothTensors> tensors = tensors_of(results, graph_);
  const std::optional<at::Tensor> written = written_by(node);
  if (tensors.empty() && std::ranges::find(kFacts, name) == std::end(kFacts))
    graph_.unsupported(name + " on the contents of images");
  // A tensor that is returned as it is, or taken from a list.
  const auto known = [&](const BothTensors& tensor) { return graph_.is_named(tensor[0]); };
  if (!written && std::ranges::all_of(tensors, known)) return;
  std::string base = name.substr(name.find(':') + 2);
  if (base.ends_with('_') && !base.ends_with("__")) base.pop_back();
  const OnnxRow* const row = name.starts_with("aten::") ? onnx_row(base) : nullptr;
  if (!row) graph_.unsupported(name);
  OnnxCall call(graph_, node.schema(), row->as, std::move(arguments), tensors);
  std::vector<std::string> names = row->convert(call);
  names.resize(tensors.size());  // a result without a name cannot be used
  for (size_t i = 0; i < tensors.size(); ++i)
    if (written && tensors[i][0].is_same(*written))
      graph_.overwrite(*written, names[i]);
    else
      graph_.set(tensors[i][0], names[i]);
}

std::vector<NamedTensor> weights_of(const jit::Module& program) {
  std::vector<NamedTensor> weights;
  for (const auto& item : program.named_parameters()) weights.push_back({item.name, item.value});
  for (const auto& item : program.named_buffers()) weights.push_back({item.name, item.value});
  return weights;
}

// Samples whose numbers differ.
at::Tensor numbers_for(const ModelInput& input, int64_t count) {
  const at::Tensor zeros = input.zeros(count);
  const bool whole = zeros.scalar_type() == at::kLong;
  const at::Tensor numbers = whole ? at::arange(zeros.numel()) : at::linspace(-2, 2, zeros.numel());
  const int64_t values = input.tensor.values;
  return (whole && values > 0 ? numbers.remainder(values) : numbers).reshape(zeros.sizes());
}

}  // namespace

void export_onnx(Env& env, const std::string& path, Model& model, const ImageSize& size,
                 const std::map<std::string, std::string>& metadata) {
  export_onnx(env, path, model, ModelInput{1, size, env}, metadata);
}

void export_onnx(Env& env, const std::string& path, Model& model, const ModelInput& input,
                 const std::map<std::string, std::string>& metadata) {
  const at::NoGradGuard no_grad;
  const jit::Module program = evaluation_program(model, input);
  const auto code = program.get_method("forward").graph()->copy();
  // One level of calls at a time: TorchScript may keep callees as they were written.
  for (int level = 0; level < kMostLevels; ++level) jit::Inline(*code);
  jit::EliminateDeadCode(code);
  const auto label = metadata.find("model");
  OnnxGraph graph(weights_of(program), label == metadata.end() ? path : label->second);
  BothTensors images;
  for (const size_t run : {0, 1}) images[run] = numbers_for(input, kRunImages[run]);
  ProgramRuns runs(graph);
  if (code->inputs().size() != 2) graph.unsupported("a forward of several arguments");
  runs.set(code->inputs()[0], {program._ivalue(), program._ivalue()});
  runs.set(code->inputs()[1], {images[0], images[1]});
  graph.set_input(images, input.is_images() ? "images" : "input");
  runs.run(*code->block());
  const BothRuns& output = runs.get(code->outputs()[0]);
  for (const size_t run : {0, 1})
    if (!output[run].isTensor() || output[run].toTensor().dim() < 2 ||
        output[run].toTensor().size(0) != kRunImages[run])
      graph.unsupported("a forward whose result is not logits of each image");
  for (const size_t run : {0, 1}) {
    const at::Tensor expected = model.forward(images[run]), found = output[run].toTensor();
    if (expected.sizes() != found.sizes() ||
        !at::allclose(found, expected, 1e-3,
                      1e-3 * at::nan_to_num(expected.abs()).max().item<double>(),
                      /*equal_nan=*/true))
      graph.fail_export(
          "its forward uses a number from the images or a random one, which a trace does not "
          "record",
          "Compute with tensors alone in forward()");
  }
  OnnxModel file = graph.finish({output[0].toTensor(), output[1].toTensor()});
  file.metadata = metadata;
  write_atomically(env, path, to_onnx(file, path));
}

}  // namespace saturate
