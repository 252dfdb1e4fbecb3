#include "app/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "app/command.h"
#include "saturate/data/error.h"

namespace saturate {
namespace {

// A terminal obeys control characters, so all but line ends and tabs are shown as numbers.
std::string shown(const std::string& text) {
  std::string safe;
  for (const char c : text) {
    const bool is_control = static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
    safe += is_control && c != '\n' && c != '\t'
                ? fmt::format("\\x{:02x}", static_cast<unsigned char>(c))
                : std::string(1, c);
  }
  return safe;
}

void print_now(const std::string& text) {
  fmt::print("{}", shown(text));
  std::fflush(stdout);
}

}  // namespace

void print_generated(Model& model, const at::Device& device, const Recipe& recipe,
                     const std::vector<TensorField>& fields, const GenerationArguments& arguments) {
  const auto input = std::ranges::find(fields, false, &TensorField::is_target);
  if (recipe.train.task != TaskKind::kLanguage || input == fields.end())
    fail(ErrorKind::kUsage, "this run did not train a language model", "--generate",
         "Give a run with train.task=language");
  const Vocabulary vocabulary(input->values, input->symbols);
  std::vector<int64_t> prompt = vocabulary.tokens(arguments.prompt);
  const bool has_prompt = !prompt.empty();
  if (!has_prompt) prompt = {vocabulary.first()};
  if (has_prompt)
    for (const int64_t token : prompt) print_now(vocabulary.text(token));
  generate_tokens(model, device, input->shape.at(0), input->values, std::move(prompt),
                  arguments.options, [&](int64_t token) {
                    print_now(vocabulary.text(token));
                    return true;
                  });
  fmt::print("\n");
}

void add_generation(CLI::App& command, GenerationArguments& arguments) {
  GenerationOptions& options = arguments.options;
  arguments.option =
      command
          .add_option("--generate", arguments.prompt,
                      "Print a text of a language model, after this prompt, instead of evaluating; "
                      "without one after a line end or a blank. Of a vocabulary that is not of "
                      "characters: numbers of tokens")
          ->type_name("[PROMPT]")
          ->expected(0, 1);
  const auto with = [&](CLI::Option* option) { option->needs(command.get_option("--generate")); };
  with(add_number(command, "--tokens", options.tokens, int64_t{1}, int64_t{1} << 30,
                  "Tokens to generate"));
  with(add_number(command, "--temperature", options.temperature, 0.0, 100.0,
                  "Divides the logits: below 1 likely tokens become likelier; 0: always the "
                  "likeliest one"));
  with(add_number(command, "--top-k", options.top_k, int64_t{0}, int64_t{1} << 30,
                  "Draw among so many of the likeliest tokens; 0: among all"));
  with(add_number(command, "--seed", options.seed, uint64_t{0}, UINT64_MAX,
                  "Seed of the drawn tokens"));
}

}  // namespace saturate
