// Parsing the time that oneDNN and MKL print.
#include <gtest/gtest.h>

#include "advise/step_bench.h"

namespace saturate {
namespace {

// Lines as oneDNN 3.7 and MKL 2024 print them.
TEST(LibraryTimes, SumsTheTimesOfEachLibrary) {
  const LibraryTimes times = parse_library_times(
      "onednn_verbose,v1,info,oneDNN v3.7.1 (commit 8d263e693366ef8db40acc569cc7d8edf644556d)\n"
      "onednn_verbose,v1,primitive,create,cpu,convolution,brg_conv_fwd:avx2,forward_training,"
      "src:f32,,,mb20,9\n"
      "onednn_verbose,v1,primitive,exec,cpu,convolution,brg_conv_fwd:avx2,forward_training,"
      "src:f32,,,mb20,0.25\n"
      "onednn_verbose,v1,primitive,exec,cpu,convolution,jit:avx2,backward_weights,src:f32,,,mb20,"
      "1.5\n"
      "onednn_verbose,v1,primitive,exec,cpu,reorder,jit:uni,undef,src:f32,,,64x3x3x3,0.05\n"
      "MKL_VERBOSE oneMKL 2024.0 Product build 20231011 for Intel(R) 64 architecture, Lnx 2.60GHz\n"
      "MKL_VERBOSE SGEMM(T,N,128,64,784,0x1,0x2,784,0x3,784,0x4,0x5,128) 100.5us CNR:OFF TID:0\n"
      "MKL_VERBOSE SGEMM(N,N,784,128,64,0x1,0x2,784,0x3,128,0x4,0x5,784) 2ms CNR:OFF TID:0\n"
      "MKL_VERBOSE SGEMV(N,N,1,2,3) 500ns CNR:OFF TID:0\n"
      "a line of somebody else, exec, (and brackets) 5us\n");
  EXPECT_DOUBLE_EQ(times.onednn_s, 1.8e-3);
  EXPECT_NEAR(times.mkl_s, 2.101e-3, 1e-12);
  ASSERT_EQ(times.kinds.size(), 4u);
  EXPECT_DOUBLE_EQ(times.kinds.at("convolution"), 1.75e-3);
  EXPECT_NEAR(times.kinds.at("SGEMM"), 2.1005e-3, 1e-12);
}

TEST(LibraryTimes, NoOutputIsNoTime) {
  const LibraryTimes times = parse_library_times("");
  EXPECT_EQ(times.onednn_s + times.mkl_s, 0);
  EXPECT_TRUE(times.kinds.empty());
}

}  // namespace
}  // namespace saturate
