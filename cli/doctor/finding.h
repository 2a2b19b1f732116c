// What `refit doctor` says of one thing: what it found, what that is needed for, and what to do.
#pragma once
#include <string>
#include <vector>

#include "core/core.h"

namespace refit::cli {

struct Finding {
  std::string name;          // as in --need NAME: "tcp", "memlock"
  bool works = false;        // tried for real, or large enough
  std::string found;         // what is here
  std::string needed;        // what for, how much
  std::string todo{};        // empty where it works
};
using Findings = std::vector<Finding>;

inline Finding finding(std::string name, const Status& tried, std::string found, std::string needed, std::string todo) {
  if (tried.ok()) return {std::move(name), true, std::move(found), std::move(needed), ""};
  return {std::move(name), false, tried.error().to_string(), std::move(needed), std::move(todo)};
}

// Every mover that is built, with a small bucket from one end to another, and control lanes over ipc and CURVE.
// `directory` is private and empty; the environment may refuse what it likes.
Findings try_movers(Env& env, const std::string& directory, double patience_s);

// The machine. `root` stands before /proc and /sys ("" is the real one).
struct HostQuestions {
  std::string root;
  std::int64_t shm_bytes = 64 << 20;
  std::string advertise;  // an address that must be this host's; empty: none asked
};
Findings look_at_host(Env& env, const HostQuestions& questions);

// Libraries of vendors that are loaded at run time: is one here, which version, and does anything use it.
Findings look_for_vendors();

// An object store: a write, one that must be refused because something is there, a read, a removal.
Finding try_store(const std::string& url, const std::string& region, const std::string& endpoint,
                  const std::string& profile, double patience_s);
// Without a store: whose credentials would be used, if any.
Finding look_for_credentials();
// A running engine over HTTP: its kind, its version, and what is known of that version.
Finding try_engine(const std::string& url, double patience_s);

}  // namespace refit::cli
