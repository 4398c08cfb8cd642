// Transfers with strides and layouts, zero copy, callbacks exactly once.
#include "csrc/pjrt/buffer.h"

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <numeric>
#include <thread>

#include "csrc/pjrt/read.h"
#include "tests/cpp/pjrt/test_util.h"

namespace torch_tpu::pjrt {
namespace {

using testing::cpu_client;
using testing::cpu_device;
using testing::download;
using testing::expect_error;
using testing::upload;

// 64-byte aligned floats: what XLA:CPU needs to use host memory in place.
struct AlignedFloats {
  explicit AlignedFloats(size_t n)
      : data(static_cast<float*>(::operator new[](n * sizeof(float), std::align_val_t{64}))) {
    std::iota(data, data + n, 0.0F);
  }
  ~AlignedFloats() { ::operator delete[](data, std::align_val_t{64}); }
  float* data;
};

const std::vector<float> kSix = {1, 2, 3, 4, 5, 6};

TEST(Buffer, Properties) {
  Buffer buffer = upload(kSix, {2, 3}, 1);
  EXPECT_EQ(buffer.dims(), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(buffer.element_type(), PJRT_Buffer_Type_F32);
  EXPECT_EQ(buffer.on_device_size(), 24u);
  EXPECT_EQ(buffer.host_size(), 24u);
  EXPECT_EQ(buffer.device(), cpu_device(1));
  EXPECT_EQ(buffer.minor_to_major(), (std::vector<int64_t>{1, 0}));
  EXPECT_FALSE(buffer.is_deleted());
  EXPECT_TRUE(buffer.is_on_cpu());
  buffer.await();
  EXPECT_TRUE(buffer.is_ready());
  EXPECT_EQ(download(buffer), kSix);

  Buffer moved = std::move(buffer);
  EXPECT_FALSE(buffer);  // NOLINT: the moved-from state is specified
  buffer = std::move(moved);
  EXPECT_EQ(download(buffer), kSix);
  PJRT_Buffer* raw = buffer.release();
  EXPECT_FALSE(buffer);
  destroy_buffer(cpu_client()->api(), raw);
  destroy_buffer(cpu_client()->api(), nullptr);
}

TEST(Buffer, ElementTypes) {
  EXPECT_EQ(element_bits(PJRT_Buffer_Type_S4), 4);
  EXPECT_EQ(element_bits(PJRT_Buffer_Type_C128), 128);
  EXPECT_EQ(element_bits(PJRT_Buffer_Type_TOKEN), 0);
  EXPECT_STREQ(element_type_name(PJRT_Buffer_Type_BF16), "bf16");
  EXPECT_STREQ(element_type_name(PJRT_Buffer_Type_F8E4M3FN), "f8e4m3fn");
  EXPECT_STREQ(element_type_name(PJRT_Buffer_Type_U2), "u2");
  EXPECT_STREQ(element_type_name(PJRT_Buffer_Type_F4E2M1FN), "f4e2m1fn");
  EXPECT_STREQ(element_type_name(static_cast<PJRT_Buffer_Type>(999)), "unknown");
}

TEST(Buffer, ScalarsAndEmptyArrays) {
  const Buffer scalar = upload({7}, {});
  EXPECT_TRUE(scalar.dims().empty());
  EXPECT_EQ(download(scalar), std::vector<float>{7});

  const Buffer empty = upload({}, {0, 3});
  EXPECT_EQ(empty.host_size(), 0u);
  empty.copy_to_host(nullptr, 0).await();
  empty.copy_to_host(nullptr, 0, HostLayout::byte_strides({12, 4})).await();
}

TEST(Buffer, HostStridesOnUpload) {
  // The transpose of a row-major 3x2 array, read without copying it first.
  const int64_t dims[] = {2, 3};
  const int64_t strides[] = {4, 8};
  const Buffer buffer = cpu_client()->from_host(kSix.data(), PJRT_Buffer_Type_F32, dims, strides,
                                                HostSemantics::kOnlyDuringCall, cpu_device());
  EXPECT_EQ(download(buffer), (std::vector<float>{1, 3, 5, 2, 4, 6}));
}

TEST(Buffer, HostLayoutsOnDownload) {
  const Buffer buffer = upload(kSix, {2, 3});
  const std::vector<float> column_major = {1, 4, 2, 5, 3, 6};
  EXPECT_EQ(download(buffer, HostLayout::row_major()), kSix);
  EXPECT_EQ(download(buffer, HostLayout::minor_to_major({1, 0})), kSix);
  EXPECT_EQ(download(buffer, HostLayout::minor_to_major({0, 1})), column_major);
  EXPECT_EQ(download(buffer, HostLayout::byte_strides({12, 4})), kSix);
  EXPECT_EQ(download(buffer, HostLayout::byte_strides({4, 8})), column_major);

  // Dimensions of size one may have any stride.
  const Buffer thin = upload(kSix, {2, 1, 3});
  EXPECT_EQ(download(thin, HostLayout::byte_strides({12, 999, 4})), kSix);
  EXPECT_EQ(download(thin, HostLayout::byte_strides({4, 0, 8})), column_major);
}

TEST(Buffer, ReorderInThreeDimensions) {
  std::vector<float> values(24);
  std::iota(values.begin(), values.end(), 0.0F);
  const std::vector<int64_t> dims = {2, 3, 4};
  const std::vector<float> got =
      download(upload(values, dims), HostLayout::minor_to_major({1, 2, 0}));
  for (int64_t i = 0; i < 2; ++i) {
    for (int64_t j = 0; j < 3; ++j) {
      for (int64_t k = 0; k < 4; ++k)
        EXPECT_EQ(got[i * 12 + k * 3 + j], values[i * 12 + j * 4 + k]);
    }
  }
}

TEST(Buffer, EarlyReads) {
  const Buffer scalar = upload({7}, {});
  const EarlyRead early(scalar, sizeof(float));
  for (int again = 0; again < 2; ++again) {
    float value = 0;
    std::memcpy(&value, early.wait(), sizeof(value));
    EXPECT_EQ(value, 7);
  }
  // Its memory outlives who began it, and the array may go as well.
  for (int i = 0; i < 100; ++i) {
    const Buffer large = upload(std::vector<float>(1 << 16, 1.0F), {1 << 16});
    const EarlyRead dropped(large, large.host_size());
  }
  EXPECT_THROW(EarlyRead(scalar, 1), Error);  // too little room
}

TEST(Buffer, BadDownloadsAreRefused) {
  const Buffer buffer = upload(kSix, {2, 3});
  float out[6];
  EXPECT_EQ(expect_error([&] { buffer.copy_to_host(out, 8).await(); }).code(),
            PJRT_Error_Code_INVALID_ARGUMENT);
  EXPECT_EQ(expect_error([&] { buffer.copy_to_host(nullptr, 24); }).code(),
            PJRT_Error_Code_INVALID_ARGUMENT);
  EXPECT_CONTAINS(expect_error([&] {
                    buffer.copy_to_host(out, sizeof(out), HostLayout::byte_strides({16, 4}));
                  }).message(),
                  "dense");
  EXPECT_CONTAINS(expect_error([&] {
                    buffer.copy_to_host(out, sizeof(out), HostLayout::minor_to_major({0}));
                  }).message(),
                  "2 entries");
}

TEST(Buffer, CopyBetweenDevices) {
  const Buffer source = upload(kSix, {2, 3}, 0);
  const Buffer copy = source.copy_to_device(cpu_device(3));
  EXPECT_EQ(copy.device(), cpu_device(3));
  EXPECT_EQ(download(copy), kSix);
  EXPECT_FALSE(source.is_deleted());
}

TEST(Buffer, CallbackOnceForEverySemantics) {
  for (const auto semantics :
       {HostSemantics::kOnlyDuringCall, HostSemantics::kUntilTransferCompletes,
        HostSemantics::kZeroCopy, HostSemantics::kMutableZeroCopy}) {
    const AlignedFloats host(64);
    const int64_t dims[] = {64};
    std::atomic<int> calls = 0;
    {
      const Buffer buffer = cpu_client()->from_host(host.data, PJRT_Buffer_Type_F32, dims, {},
                                                    semantics, cpu_device(), [&] { ++calls; });
      buffer.await();
      EXPECT_EQ(download(buffer)[63], 63.0F);
      const bool zero_copy =
          semantics == HostSemantics::kZeroCopy || semantics == HostSemantics::kMutableZeroCopy;
      EXPECT_EQ(buffer.unsafe_pointer() == host.data, zero_copy);
      if (zero_copy) {
        EXPECT_EQ(calls, 0);
      }
    }
    while (calls == 0) std::this_thread::yield();
    EXPECT_EQ(calls, 1);
  }
}

TEST(Buffer, CallbackOnceWhenTheUploadFails) {
  int calls = 0;
  const int64_t dims[] = {2, 3};
  const int64_t bad_strides[] = {4};
  EXPECT_THROW(cpu_client()->from_host(kSix.data(), PJRT_Buffer_Type_F32, dims, bad_strides,
                                       HostSemantics::kZeroCopy, cpu_device(), [&] { ++calls; }),
               Error);
  EXPECT_EQ(calls, 1);
}

TEST(Buffer, UnalignedZeroCopyStillWorks) {
  const AlignedFloats host(65);
  const int64_t dims[] = {64};
  const Buffer buffer = cpu_client()->from_host(host.data + 1, PJRT_Buffer_Type_F32, dims, {},
                                                HostSemantics::kZeroCopy, cpu_device());
  EXPECT_NE(buffer.unsafe_pointer(), host.data + 1);
  EXPECT_EQ(download(buffer)[0], 1.0F);
}

TEST(Buffer, ViewOfForeignMemory) {
  AlignedFloats host(64);
  const int64_t dims[] = {4, 16};
  std::atomic<int> calls = 0;
  {
    const Buffer view = cpu_client()->view_of_device_memory(host.data, PJRT_Buffer_Type_F32, dims,
                                                            cpu_device(), [&] { ++calls; });
    EXPECT_EQ(view.unsafe_pointer(), host.data);
    EXPECT_EQ(download(view)[17], 17.0F);
    EXPECT_EQ(calls, 0);
  }
  // The plugin may let go of the memory on a thread of its own, after the destructor.
  while (calls == 0) std::this_thread::yield();
  EXPECT_EQ(calls, 1);
  // No callback is fine too.
  cpu_client()->view_of_device_memory(host.data, PJRT_Buffer_Type_F32, dims, cpu_device());
}

TEST(Buffer, Uninitialized) {
  const int64_t dims[] = {4, 4};
  try {
    const Buffer buffer = cpu_client()->uninitialized(PJRT_Buffer_Type_F32, dims, cpu_device());
    EXPECT_EQ(buffer.on_device_size(), 64u);
  } catch (const Error& error) {
    EXPECT_TRUE(error.is_unimplemented()) << error.what();
  }
}

}  // namespace
}  // namespace torch_tpu::pjrt
