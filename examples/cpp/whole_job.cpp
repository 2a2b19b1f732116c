// A whole refit from C++ alone: two trainer ranks (fsdp=2) and two engine ranks (vllm:tp=2) of a tiny Llama. In real
// life each is a process of its own; here they are threads, each with its own member, over shared memory.
#include <refit/refit.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

namespace {

const char* const kConfig =
    R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100,
        "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16"})";

// The bits of a small whole number as bf16.
std::uint16_t bf16(float value) {
  std::uint32_t bits = 0;
  std::copy_n(reinterpret_cast<const unsigned char*>(&value), 4, reinterpret_cast<unsigned char*>(&bits));
  return static_cast<std::uint16_t>(bits >> 16);
}

// "Trains": every weight of the rank becomes the number of the step.
void train(refit::Publisher& publisher, int step) {
  publisher.guard(30);  // until no round reads the weights any more
  for (const refit::Memory& m : publisher.memory())
    std::fill_n(static_cast<std::uint16_t*>(m.data), m.bytes / 2, bf16(static_cast<float>(step)));
  publisher.publish(step);
}

// Does every weight that the rank holds have the value of its version's step?
bool holds(const refit::Layout& layout, const refit::Receiver& receiver, std::uint32_t rank) {
  const std::uint16_t want = bf16(static_cast<float>(receiver.version().step));
  const std::vector<refit::Memory> memory = receiver.memory();
  for (const refit::ParameterInfo& p : layout.rank(rank).parameters) {
    if (p.name == "model.embed_tokens.weight" || p.name == "lm_head.weight") continue;  // padded to the engine's size
    std::int64_t elements = 1;
    for (const std::int64_t extent : p.shape) elements *= extent;
    const auto at =
        std::find_if(memory.begin(), memory.end(), [&](const refit::Memory& m) { return m.buffer == p.buffer; });
    const auto* first = reinterpret_cast<const std::uint16_t*>(static_cast<const char*>(at->data) + p.offset);
    if (!std::all_of(first, first + elements, [&](std::uint16_t v) { return v == want; })) return false;
  }
  return true;
}

int run() {
  const refit::Layout source = refit::Layout::from_config(kConfig, "fsdp=2");
  const refit::Layout target = refit::Layout::from_config(kConfig, "vllm:tp=2");
  const refit::PlanSummary plan = refit::Plan::make(source, target).summary();
  std::printf("plan: coverage %.1f, %lld bytes in %lld buckets\n", plan.coverage,
              static_cast<long long>(plan.bytes_moved), static_cast<long long>(plan.buckets));

  refit::CoordinatorOptions options;
  options.source_ranks = options.target_ranks = 2;
  refit::Coordinator coordinator(options);

  std::atomic<bool> stop{false}, wrong{false};
  std::vector<std::thread> engines;
  for (std::uint32_t rank = 0; rank < 2; ++rank)
    engines.emplace_back([&, rank] {
      try {
        refit::MemberOptions member;
        member.address = coordinator.address();
        member.rank = rank;
        refit::Receiver receiver(target, member);
        while (!stop) receiver.run(0.05);
        if (receiver.version().step != 3 || !holds(target, receiver, rank)) wrong = true;
      } catch (const refit::Error& e) {
        std::fprintf(stderr, "engine rank %u: %s\n", rank, e.what());
        wrong = true;
      }
    });

  refit::MemberOptions member;
  member.address = coordinator.address();
  refit::Publisher first(source, member);
  member.rank = 1;
  refit::Publisher second(source, member);
  try {
    coordinator.init_communicator();
    for (int step = 1; step <= 3; ++step) {
      train(first, step);
      train(second, step);
      coordinator.mark_stale();
      const refit::SyncReport report = coordinator.sync_weights();
      std::printf("step %d: %s, version %llu, %.3f s\n", step, report.outcome.c_str(),
                  static_cast<unsigned long long>(report.version.number), report.seconds);
    }
  } catch (const refit::Error& e) {  // peer, stage, bucket and tensor are fields of it
    std::fprintf(stderr, "%s\n", e.what());
    wrong = true;
  }
  stop = true;
  for (std::thread& engine : engines) engine.join();
  coordinator.shutdown();
  std::puts(wrong ? "wrong" : "both engine ranks hold step 3");
  return wrong ? EXIT_FAILURE : EXIT_SUCCESS;
}

}  // namespace

int main() {
  try {
    return run();
  } catch (const refit::Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return EXIT_FAILURE;
  }
}
