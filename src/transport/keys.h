// Keys of a control plane over TCP: one Curve25519 pair a process. A public key is the only identity that a listener
// believes; secrets lie in files that nobody but their owner may read, and are never printed.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "core/core.h"

namespace refit::transport {

// In Z85 (ZeroMQ RFC 32): 40 characters each, none of them white space.
struct KeyPair {
  std::string public_key, secret_key;
};
Result<KeyPair> make_key_pair();

// One line of a listener's allow-list: who holds the secret of this public key.
struct Admitted {
  MemberName name;
  std::string public_key;
};

struct ControlKeys {
  KeyPair own;
  std::string coordinator{};         // connecting: the coordinator's public key, the only one that is believed
  std::vector<Admitted> admitted{};  // listening: who may connect
};
// kInvalid saying what is wrong with them for this end; never with a secret in the message.
Status check_keys(const ControlKeys& keys, bool listen);

// A process' key as it lies in its file.
struct KeyFile {
  Hash128 job;                      // the job that these keys were made for
  std::optional<MemberName> owner;  // none: the coordinator
  std::uint32_t member = 0;         // of a source or target: its number in the job
  ControlKeys keys;
};

// The files of one job in a directory: `coordinator.key`, one `ROLE-INSTANCE.RANK.key` a member or client, all 0600,
// and `members.pub`, the allow-list. A member's number is its place in the list. The directory is made with mode 0700,
// or must be empty and ours.
Status write_key_files(const std::string& directory, const Hash128& job, const std::vector<MemberName>& members);
std::string key_file_name(const std::optional<MemberName>& owner);
// Errors name the path: kInvalid for a file that others may read or write, that is no key file, or whose public key
// does not belong to its secret. The coordinator's own file is read with `members.pub` beside it.
Result<KeyFile> read_key_file(const std::string& path);

}  // namespace refit::transport
