// The traits of models; the option table's rows for [model], and their checks.
#include "model/model_table.h"
#include "recipe/compound_rows.h"

namespace saturate {

ModelTraits traits_of(const ModelOptions& options) {
#define SATURATE_ROW(row, doc, ...) \
  if (options.name == #row) return {__VA_ARGS__};
  SATURATE_MODELS(SATURATE_ROW)
#undef SATURATE_ROW
  return {};
}

std::vector<OptionRow> model_rows() {
  return {
      text(SATURATE_OPTION(model.name), "`saturate list` prints the names."),
      integer(SATURATE_OPTION(model.classes), {0, 1 << 20}, "classes",
              "Outputs of the model; 0: the classes of the training source, or the values of its "
              "target."),
      number(
          SATURATE_OPTION(model.width), {0, 16, true}, "times",
          "Multiplies the model's channels (a transformer's heads), to trade accuracy for speed."),
      number(SATURATE_OPTION(model.dropout), {0, 0.99}, "share",
             "mobilenet_v2: dropout before the last layer. A compiled step needs 0."),
      text(SATURATE_OPTION(model.weights),
           "A file of pretrained weights, matched by name: safetensors, a checkpoint (averaged "
           "weights if train.ema made some), or .pt as written by torch.save(model.state_dict(), "
           "FILE). The last layer is reinitialised if the file's has another number of classes. "
           "Empty: random initialisation."),
      text(SATURATE_OPTION(model.weights_prefix),
           "Prefix of the names to load from model.weights, such as \"backbone.\", or "
           "\"model_ema.\" of a .pt file with several sets of weights; other tensors are ignored. "
           "Empty: detected, after up to two of module. and model.; _orig_mod., "
           "_fsdp_wrapped_module. and _checkpoint_wrapped_module. are ignored anywhere, as is a "
           "GPT's transformer."),
      text_list(SATURATE_OPTION(model.weights_match),
                "Patterns of names to load from model.weights, such as \"encoder.*\"; the rest of "
                "the model is initialised randomly. Empty: everything."),
      text(SATURATE_OPTION(model.file),
           "torchscript: the file written by torch.jit.script(module).save(FILE)."),
  };
}

void validate_model(const ModelOptions& model, const std::string& where) {
  const bool scripted = traits_of(model).is_file;
  if (scripted && model.file.empty())
    fail_option("model.file", "is missing, and model.name is " + model.name,
                "Name a file, as torch.jit.script(module).save(FILE) writes it", where);
  if (!scripted && !model.file.empty())
    fail_option("model.file", "has no effect with model.name=" + model.name,
                "Set model.name=torchscript, or model.weights where the file holds weights", where);
  if (scripted && model.width != 1)
    fail_option("model.width", "cannot change the program in model.file",
                "Remove it, and make another file", where);
}

}  // namespace saturate
