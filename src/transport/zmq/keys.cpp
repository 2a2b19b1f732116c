// Key files. Text, one "word value" a line, so that an operator can see whose key a file is:
//   refit-key 1 | job HEX | owner NAME | public Z85 | secret Z85, and of all but the coordinator member N | coordinator
//   Z85
// and the allow-list: refit-members 1 | job HEX | coordinator Z85 | NAME Z85 …
#include "transport/keys.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <map>
#include <set>

namespace refit::transport {
namespace {

constexpr std::size_t kZ85Chars = 40, kKeyBytes = 32;
constexpr std::size_t kMaxFileBytes = 1 << 20;  // an allow-list of 10,000 members has half of it
constexpr std::string_view kKeyHead = "refit-key", kListHead = "refit-members", kRelease = "1";
constexpr const char* kListName = "members.pub";
constexpr std::string_view kCoordinator = "coordinator";

Error key_error(const std::string& path, const std::string& what) { return Error(Code::kInvalid, path + ": " + what); }
Error cannot(const std::string& what, const std::string& path) {
  return Error(errno == ENOSPC ? Code::kExhausted : Code::kInvalid,
               "cannot " + what + " " + path + ": " + std::strerror(errno));
}

bool is_key(const std::string& text) {
  std::array<std::uint8_t, kKeyBytes> raw{};
  if (text.size() != kZ85Chars) return false;
  const bool good = zmq_z85_decode(raw.data(), text.c_str()) != nullptr;
  ::explicit_bzero(raw.data(), raw.size());
  return good;
}

// A file that decides about trust: ours or root's, and closed to `closed_to`.
Result<std::string> read_guarded(const std::string& path, mode_t closed_to) {
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return cannot("open key file", path);
  struct stat st {};
  if (::fstat(fd.get(), &st) != 0) return cannot("read", path);
  if (!S_ISREG(st.st_mode)) return key_error(path, "is not a regular file");
  if (st.st_uid != ::geteuid() && st.st_uid != 0)
    return key_error(path, "belongs to user " + std::to_string(st.st_uid) + ", neither to us nor to root");
  if ((st.st_mode & closed_to) != 0)
    return key_error(path, (closed_to & S_IROTH) != 0 ? "is open to others: its mode must be 0600"
                                                      : "can be written by others: its mode must be 0644 or stricter");
  std::string text;
  char buffer[4096];
  while (text.size() <= kMaxFileBytes) {
    const ssize_t n = ::read(fd.get(), buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return cannot("read", path);
    if (n == 0) break;
    text.append(buffer, static_cast<std::size_t>(n));
  }
  ::explicit_bzero(buffer, sizeof buffer);
  if (text.size() > kMaxFileBytes) return key_error(path, "is too long for a key file");
  return text;
}

// The lines of a file as word and value, in order.
Result<std::vector<std::pair<std::string, std::string>>> lines_of(const std::string& path, const std::string& text,
                                                                  std::string_view head) {
  std::vector<std::pair<std::string, std::string>> out;
  std::set<std::string> words;
  for (std::size_t from = 0; from < text.size();) {
    const std::size_t end = std::min(text.find('\n', from), text.size());
    const std::string line = text.substr(from, end - from);
    from = end + 1;
    if (line.empty()) continue;
    const std::size_t space = line.find(' ');
    if (space == std::string::npos || space == 0 || line.find(' ', space + 1) != std::string::npos)
      return key_error(path, "line " + std::to_string(out.size() + 1) + " is not 'WORD VALUE'");
    if (!words.insert(line.substr(0, space)).second)
      return key_error(path, "'" + line.substr(0, space) + "' stands there twice");
    out.emplace_back(line.substr(0, space), line.substr(space + 1));
  }
  if (out.empty() || out.front().first != head || out.front().second != kRelease)
    return key_error(path, "does not begin with '" + std::string(head) + " " + std::string(kRelease) + "'");
  return out;
}

// Takes a word out, or tells that it is missing.
Result<std::string> take(std::map<std::string, std::string>& from, const char* word, const std::string& path) {
  const auto it = from.find(word);
  if (it == from.end()) return key_error(path, std::string("'") + word + "' is missing");
  std::string value = std::move(it->second);
  from.erase(it);
  return value;
}

Status read_list(const std::string& path, const Hash128& job, ControlKeys& keys) {
  REFIT_ASSIGN(const std::string text, read_guarded(path, S_IWGRP | S_IWOTH));
  REFIT_ASSIGN(const auto lines, lines_of(path, text, kListHead));
  std::map<std::string, std::string> words(lines.begin(), lines.end());
  words.erase(std::string(kListHead));
  REFIT_ASSIGN(const std::string hex, take(words, "job", path));
  if (hex != job.hex()) return key_error(path, "is the allow-list of another job than the key beside it");
  REFIT_ASSIGN(const std::string own, take(words, "coordinator", path));
  if (own != keys.own.public_key) return key_error(path, "names another coordinator's key");
  for (const auto& [word, value] : words) {
    const auto name = MemberName::parse(word);
    if (!name) return key_error(path, "'" + word + "' is no member (ROLE:INSTANCE.RANK)");
    keys.admitted.push_back({*name, value});
  }
  Status good = check_keys(keys, true);
  if (!good.ok()) return key_error(path, good.error().message);
  return {};
}

Status write_new(const std::string& path, const std::string& text, mode_t mode) {
  const Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode));
  if (!fd.valid()) return cannot("create", path);
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t n = ::write(fd.get(), text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return cannot("write", path);
    done += static_cast<std::size_t>(n);
  }
  // Whatever the umask added or took away.
  if (::fchmod(fd.get(), mode) != 0 || ::fsync(fd.get()) != 0) return cannot("write", path);
  return {};
}

Status make_key_directory(const std::string& directory) {
  if (::mkdir(directory.c_str(), 0700) == 0) return {};
  if (errno != EEXIST) return cannot("make the key directory", directory);
  struct stat st {};
  if (::stat(directory.c_str(), &st) != 0) return cannot("look at", directory);
  if (!S_ISDIR(st.st_mode)) return key_error(directory, "exists and is not a directory");
  if (st.st_uid != ::geteuid() || (st.st_mode & 077) != 0)
    return key_error(directory, "must be ours and closed to others (mode 0700) to hold keys");
  DIR* listing = ::opendir(directory.c_str());
  if (listing == nullptr) return cannot("look at", directory);
  std::size_t entries = 0;
  while (const dirent* entry = ::readdir(listing))
    entries += std::strcmp(entry->d_name, ".") != 0 && std::strcmp(entry->d_name, "..") != 0;
  ::closedir(listing);
  if (entries > 0) return key_error(directory, "is not empty: keys are made once a job, into a directory of their own");
  return {};
}

std::string key_text(const Hash128& job, const std::string& owner, const KeyPair& own) {
  return std::string(kKeyHead) + " " + std::string(kRelease) + "\njob " + job.hex() + "\nowner " + owner + "\npublic " +
         own.public_key + "\nsecret " + own.secret_key + "\n";
}

}  // namespace

Result<KeyPair> make_key_pair() {
  std::array<char, kZ85Chars + 1> open{}, secret{};
  if (zmq_curve_keypair(open.data(), secret.data()) != 0)
    return Error(Code::kUnsupported, std::string("this libzmq makes no CURVE keys: ") + zmq_strerror(zmq_errno()));
  KeyPair pair{open.data(), secret.data()};
  ::explicit_bzero(secret.data(), secret.size());
  return pair;
}

Status check_keys(const ControlKeys& keys, bool listen) {
  if (!is_key(keys.own.public_key) || !is_key(keys.own.secret_key))
    return Error(Code::kInvalid, "the own key is not a pair of 40 Z85 characters each");
  std::array<char, kZ85Chars + 1> derived{};
  if (zmq_curve_public(derived.data(), keys.own.secret_key.c_str()) != 0 || keys.own.public_key != derived.data())
    return Error(Code::kInvalid, "the public key does not belong to the secret one");
  if (!listen && !is_key(keys.coordinator))
    return Error(Code::kInvalid, "the coordinator's public key is missing or not 40 Z85 characters");
  if (!listen) return {};
  if (keys.admitted.empty()) return Error(Code::kInvalid, "the allow-list is empty: nobody could connect");
  std::map<std::string, MemberName> seen;
  for (const Admitted& a : keys.admitted) {
    if (!is_key(a.public_key))
      return Error(Code::kInvalid, "the key of " + a.name.to_string() + " is not 40 Z85 characters");
    // One key, one name: else a process could choose whom it speaks as.
    if (!seen.emplace(a.public_key, a.name).second)
      return Error(Code::kInvalid,
                   a.name.to_string() + " and " + seen[a.public_key].to_string() + " have the same public key");
  }
  return {};
}

std::string key_file_name(const std::optional<MemberName>& owner) {
  if (!owner) return std::string(kCoordinator) + ".key";
  return std::string(to_string(owner->role)) + "-" + std::to_string(owner->instance) + "." +
         std::to_string(owner->rank) + ".key";
}

Status write_key_files(const std::string& directory, const Hash128& job, const std::vector<MemberName>& members) {
  REFIT_ASSIGN(const KeyPair hub, make_key_pair());
  std::vector<std::pair<std::string, std::string>> files;  // name, text
  std::string list = std::string(kListHead) + " " + std::string(kRelease) + "\njob " + job.hex() + "\ncoordinator " +
                     hub.public_key + "\n";
  files.emplace_back(key_file_name(std::nullopt), key_text(job, std::string(kCoordinator), hub));
  for (std::size_t i = 0; i < members.size(); ++i) {
    const MemberName& m = members[i];
    REFIT_ASSIGN(const KeyPair own, make_key_pair());
    files.emplace_back(key_file_name(m), key_text(job, m.to_string(), own) + "member " + std::to_string(i) +
                                             "\ncoordinator " + hub.public_key + "\n");
    list += m.to_string() + " " + own.public_key + "\n";
  }
  REFIT_TRY(make_key_directory(directory));
  Status written;
  std::size_t made = 0;
  for (; made < files.size() && written.ok(); ++made)
    written = write_new(directory + "/" + files[made].first, files[made].second, 0600);
  if (written.ok()) written = write_new(directory + "/" + kListName, list, 0644);
  if (!written.ok())  // half a set of keys is worse than none
    for (std::size_t i = 0; i < made; ++i) ::unlink((directory + "/" + files[i].first).c_str());
  for (auto& [name, text] : files) ::explicit_bzero(text.data(), text.size());
  return written;
}

Result<KeyFile> read_key_file(const std::string& path) {
  REFIT_ASSIGN(std::string text, read_guarded(path, S_IRWXG | S_IRWXO));
  REFIT_ASSIGN(const auto lines, lines_of(path, text, kKeyHead));
  ::explicit_bzero(text.data(), text.size());
  std::map<std::string, std::string> words(lines.begin(), lines.end());
  words.erase(std::string(kKeyHead));
  KeyFile out;
  REFIT_ASSIGN(const std::string hex, take(words, "job", path));
  const auto job = Hash128::from_hex(hex);
  if (!job) return key_error(path, "'job' is not 32 hex digits");
  out.job = *job;
  REFIT_ASSIGN(const std::string owner, take(words, "owner", path));
  REFIT_ASSIGN(out.keys.own.public_key, take(words, "public", path));
  REFIT_ASSIGN(out.keys.own.secret_key, take(words, "secret", path));
  if (owner != kCoordinator) {
    out.owner = MemberName::parse(owner);
    if (!out.owner) return key_error(path, "'owner " + owner + "' is no member (ROLE:INSTANCE.RANK)");
    REFIT_ASSIGN(out.keys.coordinator, take(words, "coordinator", path));
    REFIT_ASSIGN(const std::string member, take(words, "member", path));
    const auto [end, err] = std::from_chars(member.data(), member.data() + member.size(), out.member);
    if (err != std::errc() || end != member.data() + member.size() || member.empty())
      return key_error(path, "'member " + member + "' is no number");
  }
  if (!words.empty()) return key_error(path, "'" + words.begin()->first + "' is unknown");
  if (!out.owner) {
    const auto slash = path.find_last_of('/');
    REFIT_TRY(read_list((slash == std::string::npos ? std::string(".") : path.substr(0, slash)) + "/" + kListName,
                        out.job, out.keys));
  } else if (Status good = check_keys(out.keys, false); !good.ok()) {
    return key_error(path, good.error().message);
  }
  return out;
}

}  // namespace refit::transport
