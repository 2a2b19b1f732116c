// Device memory over the host double where a program would not see it: no driver, no context, order within a stream.
#include <gtest/gtest.h>

#include <cstring>

#include "memory/memory.h"

namespace refit::memory {
namespace {

TEST(Cuda, NoDriverIsAnErrorOfItsOwn) {
  const auto driver = cuda_driver();
  if (driver.ok()) GTEST_SKIP() << "this machine has a driver";
  EXPECT_EQ(driver.error().code, Code::kUnsupported);
  EXPECT_NE(driver.error().message.find("CUDA driver"), std::string::npos) << driver.error().to_string();
}

TEST(Cuda, TheDoubleSaysItsNameInEveryMessage) {
  const CudaApi& api = cuda_host_double();
  const auto none = Device::open(api, 9);
  ASSERT_FALSE(none.ok());
  EXPECT_NE(none.error().message.find("cuda_host_double"), std::string::npos);
  const auto device = Device::open(api, 1);
  ASSERT_TRUE(device.ok());
  EXPECT_NE(device->text().find("cuda_host_double:1"), std::string::npos);
  const auto large = DeviceBuffer::make(*device, std::int64_t{1} << 50, "too much");
  ASSERT_FALSE(large.ok());
  EXPECT_NE(large.error().message.find("cuda_host_double"), std::string::npos);
  EXPECT_EQ(large.error().code, Code::kExhausted);
}

TEST(Cuda, ACallWithoutAContextFails) {
  const CudaApi& api = cuda_host_double();
  CuPtr at = 0;
  EXPECT_EQ(api.memory_alloc(&at, 100), kCuInvalidContext);
  const auto device = Device::open(api, 0);
  ASSERT_TRUE(device.ok());
  const Device::Scope outer(*device);
  { const Device::Scope inner(*device); }
  EXPECT_EQ(api.memory_alloc(&at, 100), kCuOk) << "the outer scope still holds";
  EXPECT_EQ(api.memory_free(at), kCuOk);
  EXPECT_EQ(api.memory_free(at), kCuInvalidValue) << "freed twice";
}

// A driver that goes away, as at the end of a process: errors from calls, nothing from destructors, and no pop of a
// context that others pushed.
TEST(Cuda, ARefusedContextIsAnErrorAndEndsNoProcess) {
  static bool refused;
  static CudaApi api;
  refused = false;
  api = cuda_host_double();
  api.context_push = [](CuContext c) { return refused ? kCuInvalidContext : cuda_host_double().context_push(c); };
  const auto device = Device::open(api, 0);
  ASSERT_TRUE(device.ok());
  const Device::Scope outer(*device);
  {
    auto there = DeviceBuffer::make(*device, 16, "there");
    auto stream = Stream::make(*device);
    ASSERT_TRUE(there.ok() && stream.ok());
    refused = true;
    for (const Status& s : {stream->fill(there->data(), 7, 16), stream->wait(Deadline::after_s(5), "the fill")}) {
      ASSERT_FALSE(s.ok());
      EXPECT_NE(s.error().message.find("context for "), std::string::npos) << s.error().to_string();
    }
    DeviceHandle lent;
    lent.device = device->uuid();
    const auto opened = ImportedMemory::open(api, lent, Fd());
    ASSERT_FALSE(opened.ok());
    EXPECT_NE(opened.error().message.find("context for "), std::string::npos) << opened.error().to_string();
  }
  refused = false;
  CuPtr at = 0;
  EXPECT_EQ(api.memory_alloc(&at, 100), kCuOk) << "the outer scope still holds";
  EXPECT_EQ(api.memory_free(at), kCuOk);
}

// Queued work has not run before somebody waits: what forgets to wait sees old bytes here.
TEST(Cuda, NothingRunsBeforeAWait) {
  const auto device = Device::open(cuda_host_double(), 0);
  ASSERT_TRUE(device.ok());
  auto stream = Stream::make(*device);
  auto host = PinnedBuffer::make(*device, 16, "host");
  auto there = DeviceBuffer::make(*device, 16, "there");
  ASSERT_TRUE(stream.ok() && host.ok() && there.ok());
  std::memset(host->data(), 0, 16);
  ASSERT_TRUE(stream->fill(there->data(), 7, 16).ok());
  ASSERT_TRUE(stream->copy(host->data(), there->data(), 16).ok());
  EXPECT_EQ(host->data()[0], std::byte{0});
  ASSERT_TRUE(stream->wait(Deadline::after_s(5), "the copy").ok());
  EXPECT_EQ(host->data()[0], std::byte{7});
}

struct Doubling {
  static constexpr const char* kName = "doubling";
  static constexpr int kThreads = 32;
  struct Params {
    std::uint32_t* at;
  };
  struct Shared {
    std::uint32_t sum;
  };
  static void run(const grid::Block<32>& block, const Params& p, Shared& s) {
    grid::PerThread<std::uint32_t, 32> own;
    block.each([&](int t) {
      own[t] = static_cast<std::uint32_t>(t);
      if (t == 0) s.sum = 0;
    });
    block.each([&](int t) { grid::atomic_add(&s.sum, own[t]); });
    block.each([&](int t) {
      if (t == 31) p.at[block.index] = s.sum;
    });
  }
};

TEST(Cuda, KernelsRunByRegionsAndTheirParametersAreCopied) {
  const auto device = Device::open(cuda_host_double(), 0);
  ASSERT_TRUE(device.ok());
  static constexpr grid::Emulated kKernels[] = {grid::emulated<Doubling>()};
  const KernelImage image{"test", {}, kKernels};
  auto module = Module::load(*device, image);
  auto stream = Stream::make(*device);
  auto there = DeviceBuffer::make(*device, 40, "there");
  ASSERT_TRUE(module.ok() && stream.ok() && there.ok());
  {
    Doubling::Params params{reinterpret_cast<std::uint32_t*>(there->data())};
    ASSERT_TRUE(module->launch<Doubling>(*stream, 10, params).ok());
    params.at = nullptr;
  }
  ASSERT_TRUE(stream->wait(Deadline::after_s(5), "the kernel").ok());
  for (int i = 0; i < 10; ++i) EXPECT_EQ(reinterpret_cast<std::uint32_t*>(there->data())[i], 496U);
}

TEST(Cuda, WithoutGpuCodeTheRealTableRefusesToLoad) {
  CudaApi real = cuda_host_double();
  real.is_double = false;
  real.name = "cuda";
  const auto device = Device::open(real, 0);
  ASSERT_TRUE(device.ok());
  const KernelImage image{"test", {}, {}};
  const auto module = Module::load(*device, image);
  ASSERT_FALSE(module.ok());
  EXPECT_EQ(module.error().code, Code::kUnsupported);
  EXPECT_NE(module.error().message.find("nvcc"), std::string::npos);
}

}  // namespace
}  // namespace refit::memory
