#include "store/directory_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

namespace refit::store {
namespace {
namespace fs = std::filesystem;

// Keys are this library's own, and names out of a listing are compared, never followed; still none may leave the
// directory.
bool is_key(const std::string& key) {
  const auto fine = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '/' || c == '-'; };
  return !key.empty() && key.front() != '/' && std::all_of(key.begin(), key.end(), fine);
}

class DirectoryStore final : public ObjectStore {
 public:
  explicit DirectoryStore(std::string directory)
      : ObjectStore("file://" + directory), directory_(std::move(directory)) {}

  Status put(const std::string& key, View bytes, const Sha256&, Deadline) override {
    REFIT_ASSIGN(const std::string path, prepare(key));
    REFIT_ASSIGN(const std::string temporary, write_beside(path, bytes));
    if (::rename(temporary.c_str(), path.c_str()) != 0) return give_up(temporary, path, "rename onto it");
    return sync_parent(path);
  }

  Result<bool> put_new(const std::string& key, View bytes, Deadline) override {
    REFIT_ASSIGN(const std::string path, prepare(key));
    REFIT_ASSIGN(const std::string temporary, write_beside(path, bytes));
    const bool linked = ::link(temporary.c_str(), path.c_str()) == 0;
    if (!linked && errno != EEXIST) return give_up(temporary, path, "link it");
    ::unlink(temporary.c_str());
    if (linked) REFIT_TRY(sync_parent(path));
    return linked;
  }

  Result<std::optional<Bytes>> get(const std::string& key, std::int64_t limit, Deadline deadline) override {
    REFIT_ASSIGN(const std::optional<std::int64_t> size, size_of(key));
    if (!size) return std::optional<Bytes>();
    if (*size > limit) return broken(Code::kCorrupt, key, "is longer than it can be").amounts(limit, *size);
    Bytes out(static_cast<std::size_t>(*size));
    REFIT_ASSIGN(const bool there, read(key, 0, out, deadline));
    return there ? std::optional<Bytes>(std::move(out)) : std::optional<Bytes>();
  }

  Result<bool> read(const std::string& key, std::int64_t offset, std::span<std::byte> out, Deadline) override {
    REFIT_ASSIGN(const std::string path, path_of(key));
    ++requests_;
    const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));  // a FIFO would wait
    if (!fd.valid() && errno == ENOENT) return false;
    if (!fd.valid()) return failed(path, "open");
    struct stat s {};
    if (::fstat(fd.get(), &s) != 0) return failed(path, "look at it");
    if (!S_ISREG(s.st_mode)) return broken(Code::kCorrupt, key, "is no regular file");
    std::size_t done = 0;
    while (done < out.size()) {
      const ssize_t n = ::pread(fd.get(), out.data() + done, out.size() - done, offset + static_cast<off_t>(done));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return failed(path, "read");
      if (n == 0)
        return broken(Code::kCorrupt, key, "is shorter than its manifest says")
            .amounts(offset + std::ssize(out), offset + static_cast<std::int64_t>(done));
      done += static_cast<std::size_t>(n);
    }
    bytes_down_ += std::ssize(out);
    return true;
  }

  Result<std::optional<Stat>> stat(const std::string& key, Deadline deadline) override {
    REFIT_ASSIGN(const std::optional<std::int64_t> size, size_of(key));
    if (!size) return std::optional<Stat>();
    Bytes bytes(static_cast<std::size_t>(*size));
    REFIT_ASSIGN(const bool there, read(key, 0, bytes, deadline));
    if (!there) return std::optional<Stat>();
    return std::optional<Stat>({*size, sha256(bytes)});
  }

  Result<std::vector<Listed>> list(const std::string& prefix, Deadline) override {
    ++requests_;
    std::vector<Listed> out;
    std::error_code error;
    // Every prefix in use ends at a slash: a folder of its own.
    const fs::path top = fs::path(directory_) / prefix;
    for (auto it = fs::recursive_directory_iterator(top, error); !error && it != fs::recursive_directory_iterator();
         it.increment(error)) {
      std::error_code gone;  // a file may go while it is listed
      if (it->path().filename().string().starts_with('.') || !it->is_regular_file(gone)) continue;
      const auto size = it->file_size(gone);
      if (!gone) out.push_back({fs::relative(it->path(), directory_).string(), static_cast<std::int64_t>(size)});
    }
    if (error && error != std::errc::no_such_file_or_directory)
      return Error(Code::kInvalid, top.string() + ": cannot be listed: " + error.message()).at_peer(name());
    return out;
  }

  Status remove(const std::string& key, Deadline) override {
    REFIT_ASSIGN(const std::string path, path_of(key));
    ++requests_;
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) return failed(path, "remove");
    // The folder of a version goes with its last object, and what a writer that died left there. The folders above
    // stay: others may be about to write in them.
    if (std::count(key.begin(), key.end(), '/') >= 2) remove_if_done(fs::path(path).parent_path());
    return {};
  }

 private:
  Error broken(Code code, const std::string& key, const std::string& what) const {
    return Error(code, "object " + key + " " + what).at_peer(name());
  }
  Error failed(const std::string& path, const char* what) const {
    const int error = errno;
    return Error(error == ENOSPC || error == EDQUOT ? Code::kExhausted : Code::kInvalid,
                 path + ": cannot " + what + ": " + std::strerror(error))
        .at_peer(name());
  }
  Error give_up(const std::string& temporary, const std::string& path, const char* what) const {
    Error e = failed(path, what);
    ::unlink(temporary.c_str());
    return e;
  }
  Result<std::string> path_of(const std::string& key) const {
    if (!is_key(key)) return broken(Code::kInternal, key, "has a key that this store does not write");
    return directory_ + "/" + key;
  }
  Result<std::string> prepare(const std::string& key) {
    REFIT_ASSIGN(const std::string path, path_of(key));
    ++requests_;
    std::error_code error;
    fs::create_directories(fs::path(path).parent_path(), error);
    if (error) return Error(Code::kInvalid, path + ": cannot make its folder: " + error.message()).at_peer(name());
    return path;
  }
  static void remove_if_done(const fs::path& folder) {
    std::error_code error;
    std::vector<fs::path> left;
    for (auto it = fs::directory_iterator(folder, error); !error && it != fs::directory_iterator();
         it.increment(error)) {
      if (!it->path().filename().string().starts_with('.')) return;
      left.push_back(it->path());
    }
    for (const fs::path& p : left) ::unlink(p.c_str());
    ::rmdir(folder.c_str());
  }
  // A synced temporary file in the same folder.
  Result<std::string> write_beside(const std::string& path, View bytes) {
    std::string temporary = fs::path(path).parent_path().string() + "/.XXXXXX";
    const Fd fd(::mkostemp(temporary.data(), O_CLOEXEC));
    if (!fd.valid()) return failed(path, "create a temporary file beside it");
    std::size_t done = 0;
    while (done < bytes.size()) {
      const ssize_t n = ::write(fd.get(), bytes.data() + done, bytes.size() - done);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return give_up(temporary, path, "write");
      done += static_cast<std::size_t>(n);
    }
    if (::fchmod(fd.get(), 0644) != 0 || ::fsync(fd.get()) != 0) return give_up(temporary, path, "sync");
    bytes_up_ += std::ssize(bytes);
    return temporary;
  }
  Status sync_parent(const std::string& path) const {
    const std::string parent = fs::path(path).parent_path().string();
    const Fd fd(::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd.valid() || ::fsync(fd.get()) != 0) return failed(parent, "sync");
    return {};
  }
  Result<std::optional<std::int64_t>> size_of(const std::string& key) {
    REFIT_ASSIGN(const std::string path, path_of(key));
    struct stat s {};
    if (::lstat(path.c_str(), &s) == 0) return std::optional<std::int64_t>(s.st_size);
    if (errno == ENOENT || errno == ENOTDIR) return std::optional<std::int64_t>();
    return failed(path, "look at it");
  }

  const std::string directory_;
};

}  // namespace

Result<std::unique_ptr<ObjectStore>> open_directory(const std::string& directory) {
  if (directory.empty()) return Error(Code::kInvalid, "file:// names no directory");
  std::error_code error;
  fs::create_directories(directory, error);
  if (error) return Error(Code::kInvalid, directory + ": cannot be made: " + error.message());
  return std::unique_ptr<ObjectStore>(std::make_unique<DirectoryStore>(directory));
}

}  // namespace refit::store
