// The launcher, over processes that are no runs.
#include <gtest/gtest.h>
#include <signal.h>

#include "saturate/launcher.h"

namespace saturate {
namespace {

// As one that has not come to catching signals.
TEST(Launcher, AProcessThatTheSignalPassedOnEndsIsStoppedAndNotFailed) {
  LaunchOptions options;
  options.processes = 2;
  options.restarts = 3;
  options.program = "/bin/sleep";
  options.arguments = {"600"};
  EXPECT_EQ(launch(options, [] { return SIGTERM; }), 128 + SIGTERM);
}

}  // namespace
}  // namespace saturate
