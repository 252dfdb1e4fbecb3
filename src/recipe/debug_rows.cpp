// The option table's rows for [debug], for measurements and for finding errors. To add an
// optimisation to switch off: a member in its component's options, a word here.
#include "recipe/compound_rows.h"

namespace saturate {
namespace {

// A word of earlier versions for what is the default now: accepted, and not written.
void ignore(const std::string& word, OptionRow& row) {
  row.set = [word, set = row.set](Recipe& recipe, const OptionValue& value,
                                  const std::string& where) {
    OptionValue rest = value;
    if (auto* const texts = std::get_if<std::vector<std::string>>(&rest)) std::erase(*texts, word);
    if (rest == OptionValue(word)) rest = std::vector<std::string>();
    set(recipe, rest, where);
  };
}

}  // namespace

// Long: a table, a word a switch.
std::vector<OptionRow> debug_rows() {
  std::vector<OptionRow> rows = {
      word_list(
          "debug.off",
          {Word("fused")
               .sets(SATURATE_MEMBER(optimizer.fused), false)
               .means(
                   "one kernel updates all parameters (sgd, adam, adamw, and muon's AdamW part), "
                   "else separate operators for each"),
           Word("set_to_none")
               .sets(SATURATE_MEMBER(optimizer.set_to_none), false)
               .means("frees gradients after a step, else zeroes them in place, which keeps their "
                      "memory"),
           Word("channels_last")
               .sets(SATURATE_MEMBER(train.channels_last), false)
               .means(
                   "keeps images and weights in NHWC memory order, the fastest for convolutions"),
           Word("late_metrics")
               .sets(SATURATE_MEMBER(train.late_metrics), false)
               .means(
                   "reads loss and accuracy from the device only when a record is due, else after "
                   "each step, which waits for the device and detects a non-finite loss at once"),
           Word("create_on_device")
               .sets(SATURATE_MEMBER(train.create_on_device), false)
               .means("creates a step's temporary tensors on their device, else on the host, and "
                      "copies them"),
           Word("keep_memory")
               .sets(SATURATE_MEMBER(train.keep_memory), false)
               .means(
                   "on the CPU, reuses freed memory for later tensors, else returns large blocks "
                   "to the system, which clears and maps them again each time"),
           Word("inference_mode")
               .sets(SATURATE_MEMBER(train.inference_mode), false)
               .means("evaluates in torch's inference mode, which skips autograd bookkeeping, else "
                      "only without gradients"),
           Word("cudnn_heuristics")
               .sets(SATURATE_MEMBER(train.cudnn_benchmark), true)
               .means("on a GPU, cuDNN's heuristics choose its algorithms, else it times them for "
                      "each new shape (cudnn.benchmark), which takes seconds to minutes and is "
                      "seldom faster"),
           Word("tf32")
               .sets(SATURATE_MEMBER(precision.tf32), false)
               .means(
                   "in all modes except fp32, which is exact, the remaining fp32 matrix products "
                   "may round their inputs to TF32 on a GPU"),
           Word("sdpa")
               .sets(SATURATE_MEMBER(model.attention), Attention::kNaive)
               .means("transformers (vit and gpt models): torch's fused attention, else unfused "
                      "attention, which stores the matrix of all pairs of tokens"),
           Word("background")
               .sets(SATURATE_MEMBER(checkpoint.background), false)
               .means("writes a copy of a checkpoint on a separate thread while training "
                      "continues")},
          "Optimisations to switch off, to measure what each one gains."),
      word_list(
          "debug.checks",
          {Word("streams")
               .sets(SATURATE_MEMBER(pipeline.check), true)
               .means("the streams' use of memory: a missing wait, a wrong record_stream or a copy "
                      "from unpinned memory ends the run and names the line that caused it"),
           Word("anomaly")
               .sets(SATURATE_MEMBER(train.detect_anomaly), true)
               .means("torch's anomaly detection: an error names the operator whose gradient is "
                      "NaN; up to a hundred times slower for small models, as LibTorch records a "
                      "C++ stack trace for every operator, unlike Python")},
          "Checks to switch on."),
  };
  ignore("cudnn_benchmark", rows.front());
  return rows;
}

}  // namespace saturate
