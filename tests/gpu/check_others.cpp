// NCCL and torch, where they are found.
#include <dlfcn.h>

#include <cstdio>

#include "gpu/bench.h"

namespace refit::gpu {
namespace {

// Own declarations of the few functions.
struct NcclId {
  char bytes[128];
};
using NcclComm = void*;
struct Nccl {
  int (*version)(int*);
  int (*unique_id)(NcclId*);
  int (*init)(NcclComm*, int ranks, NcclId, int rank);
  int (*broadcast)(const void*, void*, std::size_t, int type, int root, NcclComm, memory::CuStream);
  int (*abort)(NcclComm);
  int (*destroy)(NcclComm);
};

std::string load(Nccl& n) {
  void* library = nullptr;
  for (const char* name : {"libnccl.so.2", "libnccl.so"})
    if (library == nullptr) library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return "libnccl.so.2 is not in the loader's path";
  const auto take = [&](auto& f, const char* symbol) {
    f = reinterpret_cast<std::remove_reference_t<decltype(f)>>(::dlsym(library, symbol));
    return f != nullptr;
  };
  return take(n.version, "ncclGetVersion") && take(n.unique_id, "ncclGetUniqueId") && take(n.init, "ncclCommInitRank") &&
                 take(n.broadcast, "ncclBroadcast") && take(n.abort, "ncclCommAbort") && take(n.destroy, "ncclCommDestroy")
             ? ""
             : "libnccl lacks a function";
}

// One rank: NCCL refuses two on one GPU. Init, use, abort with a broadcast queued, rebuild, use, end.
std::string one_rank(Bench& b, const Nccl& n) {
  const memory::Device::Scope current(b.device);
  if (auto f = text(current.status("NCCL")); !f.empty()) return f;
  Bytes bytes(1 << 20, std::byte{0x42});
  Mirror from(b, bytes.data(), 1 << 20);
  const auto use = [&](NcclComm comm) -> std::string {
    Mirror to(b, nullptr, 1 << 20);
    if (n.broadcast(from.at(), to.at(), 1 << 20, 1, 0, comm, b.stream.raw()) != 0) return "broadcast failed";
    if (auto f = b.wait("a broadcast"); !f.empty()) return f;
    return to.read() == bytes ? "" : "the broadcast changed bytes";
  };
  for (int round = 0; round < 2; ++round) {
    NcclId id{};
    NcclComm comm = nullptr;
    if (n.unique_id(&id) != 0 || n.init(&comm, 1, id, 0) != 0) return "init of round " + std::to_string(round) + " failed";
    if (auto f = use(comm); !f.empty()) return f;
    Mirror late(b, nullptr, 1 << 20);  // outlives the wait: what the abort leaves in it is open
    if (round == 0 && n.broadcast(from.at(), late.at(), 1 << 20, 1, 0, comm, b.stream.raw()) != 0)
      return "the broadcast before the abort failed";
    if ((round == 0 ? n.abort(comm) : n.destroy(comm)) != 0) return round == 0 ? "abort failed" : "destroy failed";
    if (auto f = b.wait("what the end of a communicator left queued"); !f.empty()) return f;
  }
  return "";
}

// torch owns a tensor in another process; its memory is opened here by IPC handle, with torch's allocator in between.
constexpr char kTorch[] = R"py(
import ctypes, sys, time
try:
    import torch
    assert torch.cuda.is_available(), "torch sees no GPU"
except Exception as e:
    print("skip", e); sys.exit()
t = torch.arange(0, 30000, dtype=torch.float32, device="cuda:0").to(torch.bfloat16)
torch.cuda.synchronize()
cuda = ctypes.CDLL("libcuda.so.1")
base, size, handle = ctypes.c_ulonglong(), ctypes.c_size_t(), ctypes.create_string_buffer(64)
ok = cuda.cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(size), ctypes.c_ulonglong(t.data_ptr()))
ok |= cuda.cuIpcGetMemHandle(handle, base)
print("lent", ok, handle.raw.hex(), size.value, t.data_ptr() - base.value, torch.__version__, flush=True)
time.sleep(10)
)py";

std::string opened(Bench& b, const std::string& hex, long long size, long long offset) {
  memory::DeviceHandle h;
  h.device = b.device.uuid();
  for (std::size_t i = 0; i < 64; ++i) h.ipc.bytes[i] = static_cast<unsigned char>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
  h.allocation_bytes = size;
  h.offset = offset;
  h.bytes = 60000;
  auto lent = memory::ImportedMemory::open(*b.api, h, Fd());
  if (!lent.ok()) return lent.error().to_string();
  Mirror copy(b, nullptr, 60000);
  if (auto f = text(b.stream.copy(copy.at(), lent->data(), 60000)); !f.empty()) return f;
  const Bytes got = copy.read();
  for (int i = 0; i < 30000; ++i) {
    const auto v = static_cast<float>(i);
    std::uint16_t want = 0, have = 0;
    kernel::Job j;
    const std::int64_t one[] = {1}, four[] = {4}, two[] = {2};
    j.src = &v;
    j.dst = &want;
    j.extents = one;
    j.src_strides = four;
    j.dst_strides = two;
    j.src_dtype = DType::kF32;
    kernel::run_reference(std::span(&j, 1), {});
    std::memcpy(&have, got.data() + 2 * i, 2);
    if (have != want) return "element " + std::to_string(i) + " differs (bf16 rounding, or another tensor)";
  }
  return "";
}

}  // namespace

void check_nccl(Bench& b) {
  Nccl n{};
  if (b.is_double()) return b.report->skip("nccl.one_rank", "cuda_host_double: NCCL needs a GPU");
  if (auto f = load(n); !f.empty()) return b.report->skip("nccl.one_rank", f);
  int version = 0;
  (void)n.version(&version);
  b.report->check("nccl.one_rank", one_rank(b, n), "version " + std::to_string(version));
}

void check_torch(Bench& b) {
  if (b.is_double()) return b.report->skip("torch.tensor_opened", "cuda_host_double: torch needs a GPU");
  // The tensor outlives its line by ten seconds, in which our end reads it. Expandable segments have no IPC handle.
  const std::string script = "build-gpu-torch.py";
  std::FILE* const f = std::fopen(script.c_str(), "w");
  if (f == nullptr) return b.report->skip("torch.tensor_opened", "cannot write a script here");
  std::fputs(kTorch, f);
  std::fclose(f);
  const std::string command = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False timeout 150 python3 " + script;
  std::FILE* const out = ::popen((command + " </dev/null 2>/dev/null").c_str(), "r");
  char word[16] = {}, hex[200] = {}, version[64] = {};
  int ok = -1;
  long long size = 0, offset = 0;
  const int n = out == nullptr ? 0 : std::fscanf(out, "%15s %d %199s %lld %lld %63s", word, &ok, hex, &size, &offset, version);
  if (n == 6 && ok == 0)
    b.report->check("torch.tensor_opened", opened(b, hex, size, offset), std::string("torch ") + version);
  else if (n == 6)
    b.report->check("torch.tensor_opened", "torch's memory has no IPC handle: code " + std::to_string(ok));
  else
    b.report->skip("torch.tensor_opened", "no python3 with a torch that sees this GPU, or none within 150 s");
  if (out != nullptr) ::pclose(out);
  std::remove(script.c_str());
}

}  // namespace refit::gpu
