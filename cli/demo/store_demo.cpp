#include "cli/demo/store_demo.h"

#include <fmt/format.h>
#include <signal.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/demo/child.h"
#include "cli/demo/model_source.h"

namespace refit::cli {
namespace {
using nlohmann::json;

// The trainer's process ends after each step, the replicas' stay: nothing but the store is between them.
class StoreDemo {
 public:
  StoreDemo(Context& context, const DemoOptions& options, double copy_gbps)
      : context_(context), o_(options), copy_gbps_(copy_gbps) {}
  ~StoreDemo() {
    replicas_.clear();
    std::error_code ignored;
    if (!scratch_.empty()) std::filesystem::remove_all(scratch_, ignored);
  }

  Status run() {
    if (!o_.kill.empty() || !o_.stop.empty() || o_.hold)
      return Error(Code::kUnsupported, "--kill, --stop and --hold name steps of a round; over s3_sparse there is none");
    REFIT_ASSIGN(const ModelSource model, ModelSource::open(o_.model));
    REFIT_ASSIGN(const auto target, model.layout(o_.target));
    REFIT_TRY(start(static_cast<std::uint32_t>(target->instances())));
    say(fmt::format("store: {}; {} replicas ({}) follow it; a trainer's process publishes each step", url_,
                    replicas_.size(), o_.target));
    for (int step = 0; step <= o_.steps; ++step) REFIT_TRY(one(step));
    return finish();
  }

 private:
  void say(const std::string& line) const {
    if (context_.json) return;
    fmt::print("{}\n", line);
    std::fflush(stdout);
  }

  Status start(std::uint32_t replicas) {
    url_ = o_.store;
    if (url_.empty()) {
      std::string name = (std::filesystem::temp_directory_path() / "refit-store-XXXXXX").string();
      if (::mkdtemp(name.data()) == nullptr) return Error(Code::kInvalid, name + ": cannot be made");
      scratch_ = name;
      url_ = "file://" + name;
    }
    for (std::uint32_t i = 0; i < replicas; ++i) {
      std::vector<std::string> arguments = {
          "serve",           "--follow", url_,   "--target", o_.target, "--replica",
          std::to_string(i), "--poll-s", "0.05", "--check",  "--lease", "demo-" + std::to_string(i)};
      for (const std::string& a : common()) arguments.push_back(a);
      REFIT_ASSIGN(Child child, Child::start("target:" + std::to_string(i), std::move(arguments), true));
      replicas_.push_back(std::move(child));
    }
    return {};
  }

  std::vector<std::string> common() const {
    return {"--model",   o_.model,
            "--seed",    std::to_string(o_.seed),
            "--share",   std::to_string(o_.share),
            "--threads", std::to_string(o_.threads),
            "--json"};
  }

  // The next event of that name; what else is told is passed over, but for failures.
  Result<json> event(Child& from, const std::string& what, Deadline deadline) {
    while (true) {
      Result<std::string> line = from.socket().receive(deadline);
      if (!line.ok()) return std::move(line).error().at_peer(from.name());
      json j = json::parse(*line, nullptr, false);
      if (!j.is_object()) return Error(Code::kInternal, "told no JSON: " + *line).at_peer(from.name());
      if (j.value("event", "") == what) return j;
      const bool failed = j.contains("errors") && j["errors"].is_array() && !j["errors"].empty();
      if (failed || j.value("event", "") == "failed")
        return Error(Code::kPeerLost, (failed ? j["errors"][0] : j).value("message", "failed")).at_peer(from.name());
    }
  }

  Status one(int step) {
    const Deadline deadline = Deadline::after_s(o_.total_timeout_s);
    const std::int64_t start = monotonic_ns();
    std::vector<std::string> arguments = {"publish",
                                          "--to",
                                          url_,
                                          "--from-step",
                                          std::to_string(std::max(0, step - 1)),
                                          "--steps",
                                          std::to_string(step),
                                          "--encoding",
                                          o_.encoding == "overwrite" ? "overwrite" : "undoable"};
    for (const std::string& a : common()) arguments.push_back(a);
    REFIT_ASSIGN(Child trainer, Child::start("source:0", std::move(arguments), true));
    REFIT_ASSIGN(const json published, event(trainer, "committed", deadline));
    const std::int64_t committed = monotonic_ns();
    json row{{"version", published["version"]},
             {"step", step},
             {"outcome", "committed"},
             {"error", nullptr},
             {"anchor", published["anchor"]},
             {"changed_percent", published["changed_percent"]},
             {"bits_per_change", published["bits_per_change"]},
             {"publish_seconds", static_cast<double>(committed - start) * 1e-9},
             {"upload", published["cost"]}};
    std::int64_t useful = 0, wire = 0, staged = 0, live = 0, compared = 0;
    double pause = 0, fetch = 0;
    targets_ = json::array();
    for (std::size_t i = 0; i < replicas_.size(); ++i) {
      json served;
      do {
        REFIT_ASSIGN(served, event(replicas_[i], "serves", deadline));
      } while (served["step"] != step);
      useful += served["payload_bytes"].get<std::int64_t>();
      wire += served["cost"]["bytes_down"].get<std::int64_t>();
      staged += served["proof"]["staged"].get<std::int64_t>();
      live += served["proof"]["live"].get<std::int64_t>();
      compared += served["compared_bytes"].get<std::int64_t>();
      pause = std::max(pause, served["pause_seconds"].get<double>());
      fetch = std::max(fetch, served["fetch_seconds"].get<double>());
      targets_.push_back(
          {{"index", i}, {"version", served["version"]}, {"digest", served["digest"]}, {"state", "Serving"}});
      if (served["digest"] != published["digest"])
        return Error(Code::kCorrupt, "serves other bytes than were published").at_peer(replicas_[i].name());
    }
    row.update({{"bytes_useful", useful},
                {"bytes_wire", wire},
                {"seconds", static_cast<double>(monotonic_ns() - start) * 1e-9},
                {"fetch_seconds", fetch},
                {"pause_seconds", pause},
                {"verified", true},
                {"proof", {{"staged", staged}, {"live", live}, {"compared_bytes", compared}}}});
    versions_.push_back(row);
    REFIT_TRY(trainer.wait(deadline));
    say(
        fmt::format("step {:3} version {:3} {:9} {:>11} down, {:.3f} s published, {:.3f} s in all, pause {:.1f} ms, "
                    "{} requests up; {} bytes equal to the model + {} steps",
                    step, published["version"].get<std::uint64_t>(), published["anchor"].get<bool>() ? "(anchor)" : "",
                    human_bytes(wire), row["publish_seconds"].get<double>(), row["seconds"].get<double>(), 1e3 * pause,
                    published["cost"]["requests"].get<std::int64_t>(), compared, step));
    return {};
  }

  Status finish() {
    bool ok = true;
    for (Child& c : replicas_) {
      ::kill(c.pid(), SIGTERM);
      REFIT_ASSIGN(const json served, event(c, "served", Deadline::after_s(10)));
      REFIT_TRY(c.wait(Deadline::after_s(10)));
      ok = ok && served["torn"] == 0 && served["stale_cache"] == 0 && c.ending() == "exit 0";
    }
    const double seconds = versions_.back()["fetch_seconds"].get<double>();
    const double rate = seconds > 0 ? versions_.back()["bytes_wire"].get<double>() / seconds * 1e-9 : 0;
    if (context_.json)
      fmt::print("{}\n", json{{"versions", versions_},
                              {"memcpy_gbps", copy_gbps_},
                              {"ratio_to_memcpy", copy_gbps_ > 0 ? rate / copy_gbps_ : 0},
                              {"targets", targets_},
                              {"transport", "s3_sparse"},
                              {"store", url_},
                              {"ok", ok}}
                             .dump());
    if (!ok) context_.exit_code = 1;
    say(ok ? "ok" : "NOT ok");
    return {};
  }

  Context& context_;
  const DemoOptions& o_;
  const double copy_gbps_;
  std::string url_, scratch_;
  std::vector<Child> replicas_;
  json versions_ = json::array(), targets_ = json::array();
};

}  // namespace

Status run_store_demo(Context& context, const DemoOptions& options, double copy_gbps) {
  return StoreDemo(context, options, copy_gbps).run();
}

}  // namespace refit::cli
