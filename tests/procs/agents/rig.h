// A whole job inside one process: a synchronizer, trainers and engines with real agents, real movers (zmq control, shm,
// tcp or nixl_host_double weights), each agent on a thread of its own.
#pragma once
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <thread>

#include "agent/agent.h"
#include "support/expected.h"
#include "sync/sync.h"

namespace refit::rig {

inline constexpr const char* kConfig =
    R"({"model_type":"llama","architectures":["LlamaForCausalLM"],"hidden_size":96,"intermediate_size":120,
  "num_hidden_layers":2,"num_attention_heads":6,"num_key_value_heads":3,"head_dim":16,"vocab_size":131,"tie_word_embeddings":true,
  "max_position_embeddings":64,"rms_norm_eps":1e-5,"rope_theta":10000.0,"hidden_act":"silu","torch_dtype":"bfloat16","attention_bias":false,"mlp_bias":false})";
inline constexpr std::uint64_t kSeed = 5;

// The mover of the weights, for tests that run over several.
inline std::string transport_in_use = "shm";
inline std::string encoding_in_use = "raw";

struct Options {
  std::string config = kConfig;
  std::string source = "tp=2", target = "vllm:tp=1,replicas=2";
  std::string transport = transport_in_use;
  std::string encoding = encoding_in_use;
  std::string baseline_dir{};
  bool snapshot = false;
  double stall_s = 3, join_s = 20, total_s = 20;
  sync::OnTargetLoss on_loss = sync::OnTargetLoss::kFail;
};

template <typename T>
T must(Result<T> r) {
  if (!r.ok()) throw std::runtime_error(r.error().to_string());
  return std::move(r).value();
}

struct MemberThread {
  MemberName name;
  memory::Budget budget{std::int64_t{1} << 30};
  std::unique_ptr<transport::Mover> control, data;
  std::unique_ptr<engine::ReferenceTrainer> trainer;
  std::unique_ptr<engine::ReferenceEngine> engine;
  std::unique_ptr<agent::SourceAgent> source;
  std::unique_ptr<agent::Agent> target;
  Observer observer;  // set before start
  std::atomic<bool> stop{false};
  std::atomic<std::int64_t> pause_ms{0};  // asleep this long before each slice: a late rank
  std::thread thread;

  agent::Agent& agent() { return source ? static_cast<agent::Agent&>(*source) : *target; }
  void start() {
    stop = false;
    thread = std::thread([this] {
      while (!stop) {
        if (pause_ms > 0) std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms));
        if (const Status s = agent().run(Deadline::after_s(0.02)); !s.ok()) {
          ADD_FAILURE() << name.to_string() << ": " << s.error().to_string();
          return;
        }
      }
    });
  }
  void join() {
    stop = true;
    if (thread.joinable()) thread.join();
  }
};

class Job {
 public:
  explicit Job(Options o = {}) : options_(std::move(o)) {
    Env& env = system_env();
    id_ = {env.random_u64(), env.random_u64()};
    const std::string base = must(transport::make_runtime_dir(env, ""));
    dir_ = must(transport::make_runtime_dir(env, base + "/rig-" + id_.hex().substr(0, 8)));
    source_ = must(model::rule_layout(options_.config, options_.source));
    target_ = must(model::rule_layout(options_.config, options_.target));
    shape_.source_ranks = static_cast<std::uint32_t>(source_->world());
    shape_.target_instances = static_cast<std::uint32_t>(target_->instances());
    shape_.target_ranks = static_cast<std::uint32_t>(target_->world() / target_->instances());
    open_synchronizer();
    for (std::uint32_t m = 0; m < shape_.members(); ++m) members.push_back(make(m));
  }
  ~Job() {
    for (auto& m : members) m->join();
    members.clear();
    sync.reset();
    std::error_code ignored;
    std::filesystem::remove_all(dir_, ignored);
  }

  void open_synchronizer() {
    Env& env = system_env();
    mover_ = must(transport::make_mover("zmq", {.runtime_dir = dir_,
                                                .job = id_,
                                                .member = ~0u,
                                                .incarnation = Incarnation(env.random_u64()),
                                                .name = "coordinator",
                                                .env = &env}));
    sync::SyncOptions s;
    s.job = id_;
    s.shape = shape_;
    s.control_address = "ipc://" + dir_ + "/control";
    s.journal_path = dir_ + "/journal";
    s.plan.bucket_bytes = 8192;
    s.encoding = options_.encoding;
    s.stall_timeout_s = options_.stall_s;
    s.join_timeout_s = options_.join_s;
    s.total_timeout_s = options_.total_s;
    s.on_target_loss = options_.on_loss;
    sync = must(sync::make_synchronizer(s, *mover_));
  }
  // The host of the coordinator is lost with its journal while `call` is in hand; a new one starts with an empty file.
  void lose_coordinator(std::thread& call) {
    [[maybe_unused]] const Status s = sync->shutdown();
    call.join();
    close_synchronizer();
    std::filesystem::remove(dir_ + "/journal");
  }
  // The same job under a coordinator that was restarted with another configuration.
  void restart_coordinator(const std::string& encoding) {
    close_synchronizer();
    options_.encoding = encoding;
    open_synchronizer();
  }
  void close_synchronizer() {
    sync.reset();
    mover_.reset();
  }

  std::unique_ptr<MemberThread> make(std::uint32_t member) {
    Env& env = system_env();
    auto m = std::make_unique<MemberThread>();
    m->name = shape_.name(member);
    const bool is_source = m->name.role == Role::kSource;
    const Rank rank(m->name.instance * (is_source ? shape_.source_ranks : shape_.target_ranks) + m->name.rank);
    if (is_source) {
      m->trainer = must(engine::ReferenceTrainer::make(env, source_, rank, &m->budget));
      m->trainer->randomise(kSeed);
    } else {
      m->engine = must(engine::ReferenceEngine::make(target_, rank, &m->budget));
      m->engine->start_serving();
    }
    make_agent(*m, member);
    return m;
  }
  // A (new) agent beside the shard that the member already has.
  void make_agent(MemberThread& m, std::uint32_t member) {
    Env& env = system_env();
    m.source.reset();
    m.target.reset();
    transport::MoverOptions o{.runtime_dir = dir_,
                              .job = id_,
                              .member = member,
                              .incarnation = Incarnation(env.random_u64()),
                              .name = m.name.to_string(),
                              .env = &env};
    m.data = must(transport::make_mover(options_.transport, o));
    m.control = must(transport::make_mover("zmq", o));
    agent::AgentOptions a;
    a.runtime.observer = [thread = &m](const PhaseEvent& e) {
      if (thread->observer) thread->observer(e);
    };
    a.job = id_;
    a.name = m.name;
    a.control_address = "ipc://" + dir_ + "/control";
    a.control = m.control.get();
    a.data = m.data.get();
    a.incarnation = o.incarnation;
    a.budget = &m.budget;
    a.snapshot = options_.snapshot;
    a.baseline_dir = options_.baseline_dir;
    if (m.trainer) {
      m.source = must(agent::make_source_agent(a, *m.trainer));
      m.source->publish(0, "policy");
    } else {
      m.target = must(agent::make_target_agent(a, *m.engine, *m.engine));
    }
  }

  void start() {
    for (auto& m : members) m->start();
    const Status ready = sync->init_communicator();
    if (!ready.ok()) throw std::runtime_error(ready.error().to_string());
  }
  MemberThread& at(const std::string& name) {
    for (auto& m : members)
      if (m->name.to_string() == name) return *m;
    throw std::runtime_error("no member " + name);
  }
  // One optimizer step on every trainer, with the guard that a trainer owes.
  void train(std::int64_t step) {
    for (auto& m : members)
      if (m->source) {
        const Status s = m->source->guard(Deadline::after_s(5));
        if (!s.ok()) throw std::runtime_error(s.error().to_string());
        m->trainer->step(rule, step);
        m->source->publish(step, "policy");
      }
    sync->mark_stale();
  }
  // Every live element of one engine against the pure function of (seed, steps).
  bool holds(MemberThread& m, std::int64_t steps) {
    bool same = true;
    const test::Expected expected(*source_, *target_, kSeed, rule);
    for (const model::Holding& h : m.engine->rank_layout().holdings) {
      const model::LogicalTensor& t = target_->catalogue().tensors[h.tensor.value];
      engine::for_each_run(t, h, m.engine->regions()[h.buffer].data,
                           [&](std::int64_t linear, std::byte* live, std::int64_t count) {
                             const auto want = expected.bytes(t, h.dtype, steps, linear, count);
                             same = same && std::memcmp(want.data(), live, want.size()) == 0;
                           });
    }
    return same;
  }
  bool all_hold(std::int64_t steps) {
    bool same = true;
    for (auto& m : members)
      if (m->engine) same = holds(*m, steps) && same;
    return same;
  }
  void expect_clean_serving() {
    for (auto& m : members)
      if (m->engine) {
        EXPECT_EQ(m->engine->counts().torn, 0u);
        EXPECT_EQ(m->engine->counts().stale_cache, 0u);
      }
  }

  std::vector<std::unique_ptr<MemberThread>> members;
  std::unique_ptr<sync::WeightSynchronizer> sync;
  engine::StepRule rule{.seed = 9, .share = 0.1};

 private:
  Options options_;
  Hash128 id_;
  std::string dir_;
  std::shared_ptr<const model::Layout> source_, target_;
  coordinator::Shape shape_;
  std::unique_ptr<transport::Mover> mover_;
};

}  // namespace refit::rig
