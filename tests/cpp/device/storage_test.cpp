// Storages of the device: what is in memory that nobody wrote, their addresses, resizing; and the
// way of elements to the device and back.
#include <set>

#include <ATen/ops/arange.h>
#include <ATen/ops/from_blob.h>

#include "tests/cpp/device/test_device.h"

namespace torch_tpu::device {
namespace {

using testing::elements;
using testing::on_device;

class StorageTest : public testing::DeviceTest {
 protected:
  static at::Tensor empty(c10::IntArrayRef sizes) {
    return at::empty(sizes, at::TensorOptions().device(make_device(0)).dtype(at::kFloat));
  }
  static c10::StorageImpl& storage(const at::Tensor& tensor) {
    return *tensor.storage().unsafeGetStorageImpl();
  }
};

TEST_F(StorageTest, MemoryThatNobodyWroteReadsAsZeros) {
  EXPECT_EQ(elements(empty({3})), std::vector<float>(3, 0));
}

TEST_F(StorageTest, ElementsComeBackAsTheyWere) {
  const std::vector<float> values{1, -2, 3.5f, 4, 5, 6};
  const at::Tensor tensor = on_device(values, {2, 3}, 1);
  EXPECT_EQ(tensor.device(), make_device(1));
  EXPECT_EQ(elements(tensor), values);
}

TEST_F(StorageTest, StridesOfADenseTensorAreKept) {
  const at::Tensor host = at::arange(6.0f).view({2, 3}).t();
  const at::Tensor tensor =
      make_tensor(host.sizes(), host.strides(), at::kFloat, 0, upload(host, 0));
  const at::Tensor back = download(tensor);
  EXPECT_EQ(back.strides(), host.strides());
  EXPECT_TRUE(back.equal(host));
}

TEST_F(StorageTest, AViewReadsItsPartOfTheStorage) {
  const at::Tensor base = on_device({0, 1, 2, 3, 4, 5}, {6});
  EXPECT_EQ(elements(base.as_strided({2}, {2}, 1)), (std::vector<float>{1, 3}));
}

TEST_F(StorageTest, AddressesTellStoragesApartAndViewsAlike) {
  std::set<const void*> addresses;
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < 16; ++i) {
    tensors.push_back(empty({i}));  // also one without elements
    addresses.insert(storage(tensors.back()).data());
  }
  EXPECT_EQ(addresses.size(), tensors.size());
  const at::Tensor base = empty({4});
  const at::Tensor view = base.as_strided({2}, {1}, 2);
  EXPECT_EQ(storage(base).data(), storage(view).data());
  EXPECT_EQ(reinterpret_cast<uintptr_t>(view.data_ptr()),
            reinterpret_cast<uintptr_t>(base.data_ptr()) + 2 * sizeof(float));
}

TEST_F(StorageTest, ResizingKeepsTheCommonPart) {
  const at::Tensor tensor = on_device({1, 2, 3, 4}, {4});
  resize_storage(storage(tensor), 6 * sizeof(float));
  EXPECT_EQ(elements(tensor.as_strided({6}, {1}, 0)), (std::vector<float>{1, 2, 3, 4, 0, 0}));
  resize_storage(storage(tensor), 2 * sizeof(float));
  EXPECT_EQ(elements(tensor.as_strided({2}, {1}, 0)), (std::vector<float>{1, 2}));
}

TEST_F(StorageTest, AStorageOfNoBytesHasNoAddress) {
  const at::Tensor tensor = on_device({1, 2}, {2});
  resize_storage(storage(tensor), 0);
  EXPECT_EQ(storage(tensor).data(), nullptr);
  EXPECT_EQ(storage(tensor).nbytes(), 0u);
}

TEST_F(StorageTest, APrefixHidesWhatComesAfterIt) {
  const at::Tensor host = at::arange(8.0f);
  const at::Tensor tensor = make_prefix_tensor({3}, {1}, at::kFloat, 0, upload(host, 0));
  EXPECT_EQ(tensor.storage().nbytes(), 3 * sizeof(float));
  EXPECT_EQ(elements(tensor), (std::vector<float>{0, 1, 2}));
}

TEST_F(StorageTest, HostMemoryIsReadInPlace) {
  alignas(64) static float memory[16] = {1, 2, 3};
  const at::Tensor host = at::from_blob(memory, {16}, at::kFloat);
  const at::Tensor tensor = from_host_zero_copy(host, 0);
  EXPECT_EQ(elements(tensor), std::vector<float>(memory, memory + 16));
  EXPECT_EQ(to_host_zero_copy(tensor).const_data_ptr(), memory);
}

TEST_F(StorageTest, AnAllocationHasNoBytesToCopy) {
  EXPECT_ERROR(c10::GetAllocator(kTpu)->copy_data(nullptr, nullptr, 4), c10::Error,
               "copy tensors instead");
}

}  // namespace
}  // namespace torch_tpu::device
