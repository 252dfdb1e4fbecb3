#include "app/generate.h"

#include <fmt/format.h>

#include <cstdio>

#include "app/command.h"
#include "base/printable.h"
#include "saturate/data/error.h"
#include "saturate/feed.h"

namespace saturate {
namespace {

// Prints at once, except for a character whose last bytes are not there yet.
class LiveText {
 public:
  void add(const std::string& text) {
    text_ += text;
    print(whole_characters(text_));
  }
  void finish() {
    text_ += '\n';
    print(text_.size());
  }

 private:
  void print(size_t bytes) {
    fmt::print("{}", printable_lines(text_.substr(0, bytes)));
    std::fflush(stdout);
    text_.erase(0, bytes);
  }

  std::string text_;  // not printed yet
};

}  // namespace

void print_generated(Model& model, const at::Device& device, const Recipe& recipe,
                     const std::vector<TensorField>& fields, const GenerationArguments& arguments) {
  if (recipe.train.task != TaskKind::kLanguage || fields.empty())
    fail(ErrorKind::kUsage, "this run did not train a language model", "--generate",
         "Give a run with train.task=language");
  const TensorField input = input_of(fields);
  const Vocabulary vocabulary(input.values, input.symbols);
  std::vector<int64_t> prompt = vocabulary.tokens(arguments.prompt);
  const bool has_prompt = !prompt.empty();
  if (!has_prompt) prompt = {vocabulary.first()};
  LiveText out;
  if (has_prompt)
    for (const int64_t token : prompt) out.add(vocabulary.text(token));
  generate_tokens(model, device, input.shape.at(0), input.values, std::move(prompt),
                  arguments.options, [&](int64_t token) {
                    out.add(vocabulary.text(token));
                    return true;
                  });
  out.finish();
}

void add_generation(CLI::App& command, GenerationArguments& arguments) {
  GenerationOptions& options = arguments.options;
  arguments.option =
      command
          .add_option("--generate", arguments.prompt,
                      "Print text that a language model generates, and do not evaluate. The text "
                      "continues this prompt, or a line end or a space if there is none. If the "
                      "vocabulary is not of characters, prompt and text are numbers of tokens")
          ->type_name("[PROMPT]")
          ->expected(0, 1);
  const auto with = [&](CLI::Option* option) { option->needs(command.get_option("--generate")); };
  with(add_number(command, "--tokens", options.tokens, int64_t{1}, int64_t{1} << 30,
                  "Tokens to generate"));
  with(add_number(command, "--temperature", options.temperature, 0.0, 100.0,
                  "Divides the logits: below 1 likely tokens become likelier; 0: always the "
                  "likeliest one"));
  with(add_number(command, "--top-k", options.top_k, int64_t{0}, int64_t{1} << 30,
                  "Choose among this many of the likeliest tokens; 0: among all"));
  with(add_number(command, "--seed", options.seed, uint64_t{0}, UINT64_MAX,
                  "Seed of the drawn tokens"));
}

}  // namespace saturate
