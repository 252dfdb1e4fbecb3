// The traits of models, and the checks of [model].
#include "model/model_table.h"
#include "recipe/option_row.h"

namespace saturate {

ModelTraits traits_of(const ModelOptions& options) {
#define SATURATE_ROW(row, doc, ...) \
  if (options.name == #row) return {__VA_ARGS__};
  SATURATE_MODELS(SATURATE_ROW)
#undef SATURATE_ROW
  return {};
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
                "Leave it out, and make another file", where);
}

}  // namespace saturate
