// A store in memory, one that fails where it is told to, and a small model whose every version is a formula.
#pragma once
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <filesystem>
#include <map>
#include <mutex>

#include "store/format.h"
#include "store/store.h"

namespace refit::store::testing {

inline Deadline soon() { return Deadline::after_s(60); }

using Objects = std::map<std::string, Bytes>;

class MemoryStore final : public ObjectStore {
 public:
  MemoryStore() : ObjectStore("memory:") {}
  Objects objects;

  Status put(const std::string& key, View bytes, const Sha256&, Deadline) override {
    const std::lock_guard lock(mutex_);
    objects[key] = Bytes(bytes.begin(), bytes.end());
    return {};
  }
  Result<bool> put_new(const std::string& key, View bytes, Deadline) override {
    const std::lock_guard lock(mutex_);
    return objects.try_emplace(key, bytes.begin(), bytes.end()).second;
  }
  Result<std::optional<Bytes>> get(const std::string& key, std::int64_t limit, Deadline) override {
    const std::lock_guard lock(mutex_);
    const auto it = objects.find(key);
    if (it == objects.end()) return std::optional<Bytes>();
    if (std::ssize(it->second) > limit) return Error(Code::kCorrupt, "object " + key + " is longer than it can be");
    bytes_down_ += std::ssize(it->second);
    return std::optional<Bytes>(it->second);
  }
  Result<bool> read(const std::string& key, std::int64_t offset, std::span<std::byte> out, Deadline) override {
    const std::lock_guard lock(mutex_);
    const auto it = objects.find(key);
    if (it == objects.end()) return false;
    if (offset + std::ssize(out) > std::ssize(it->second))
      return Error(Code::kCorrupt, "object " + key + " is shorter");
    std::copy_n(it->second.begin() + offset, out.size(), out.begin());
    bytes_down_ += std::ssize(out);
    return true;
  }
  Result<std::optional<Stat>> stat(const std::string& key, Deadline) override {
    const std::lock_guard lock(mutex_);
    const auto it = objects.find(key);
    if (it == objects.end()) return std::optional<Stat>();
    return std::optional<Stat>({std::ssize(it->second), sha256(it->second)});
  }
  Result<std::vector<Listed>> list(const std::string& prefix, Deadline) override {
    const std::lock_guard lock(mutex_);
    std::vector<Listed> out;
    for (const auto& [key, bytes] : objects)
      if (key.starts_with(prefix)) out.push_back({key, std::ssize(bytes)});
    std::reverse(out.begin(), out.end());  // no order may be relied on
    return out;
  }
  Status remove(const std::string& key, Deadline) override {
    const std::lock_guard lock(mutex_);
    objects.erase(key);
    return {};
  }

 private:
  std::mutex mutex_;
};

// Another store's calls as they are; a test overrides what it wants otherwise.
class PassingStore : public ObjectStore {
 public:
  explicit PassingStore(ObjectStore& s) : ObjectStore(s.name()), inner(s) {}
  Status put(const std::string& k, View b, const Sha256& s, Deadline d) override { return inner.put(k, b, s, d); }
  Result<bool> put_new(const std::string& k, View b, Deadline d) override { return inner.put_new(k, b, d); }
  Result<std::optional<Bytes>> get(const std::string& k, std::int64_t l, Deadline d) override {
    return inner.get(k, l, d);
  }
  Result<bool> read(const std::string& k, std::int64_t o, std::span<std::byte> out, Deadline d) override {
    return inner.read(k, o, out, d);
  }
  Result<std::optional<Stat>> stat(const std::string& k, Deadline d) override { return inner.stat(k, d); }
  Result<std::vector<Listed>> list(const std::string& p, Deadline d) override { return inner.list(p, d); }
  Status remove(const std::string& k, Deadline d) override { return inner.remove(k, d); }
  ObjectStore& inner;
};

// From call `at` on it is dead: that call fails before its effect, or after it (the answer is lost).
class MortalStore final : public ObjectStore {
 public:
  MortalStore(ObjectStore& inner, std::int64_t at, bool after)
      : ObjectStore(inner.name()), inner_(inner), at_(at), after_(after) {}
  std::int64_t calls() const { return calls_; }
  bool died() const { return calls_ > at_; }

  Status put(const std::string& k, View b, const Sha256& s, Deadline d) override {
    return through([&] { return inner_.put(k, b, s, d); });
  }
  Result<bool> put_new(const std::string& k, View b, Deadline d) override {
    return through([&] { return inner_.put_new(k, b, d); });
  }
  Result<std::optional<Bytes>> get(const std::string& k, std::int64_t l, Deadline d) override {
    return through([&] { return inner_.get(k, l, d); });
  }
  Result<bool> read(const std::string& k, std::int64_t o, std::span<std::byte> out, Deadline d) override {
    return through([&] { return inner_.read(k, o, out, d); });
  }
  Result<std::optional<Stat>> stat(const std::string& k, Deadline d) override {
    return through([&] { return inner_.stat(k, d); });
  }
  Result<std::vector<Listed>> list(const std::string& p, Deadline d) override {
    return through([&] { return inner_.list(p, d); });
  }
  Status remove(const std::string& k, Deadline d) override {
    return through([&] { return inner_.remove(k, d); });
  }

 private:
  template <typename F>
  auto through(F f) -> decltype(f()) {
    const std::int64_t n = calls_++;
    if (n > at_ || (n == at_ && !after_)) return Error(Code::kPeerLost, "the store is gone");
    auto result = f();
    if (n == at_) return Error(Code::kPeerLost, "the store is gone");
    return result;
  }
  ObjectStore& inner_;
  const std::int64_t at_;
  const bool after_;
  std::int64_t calls_ = 0;
};

inline Model small_model() {
  return {R"({"model_type":"small"})",
          {{"a.weight", DType::kBF16, {40, 5}},
           {"b.bias", DType::kF32, {7}},
           {"c.empty", DType::kBF16, {0, 3}},
           {"d.scale", DType::kU8, {}}}};
}

// Version `step` of every tensor: noise of the tensor, and from element 0 on every 9th element moved once a step.
inline std::vector<Bytes> tensors_at(const Model& model, std::int64_t step) {
  std::vector<Bytes> out;
  std::uint64_t x = 1;
  for (const TensorInfo& t : model.tensors) {
    std::int64_t n = item_size(t.dtype);
    const std::int64_t item = n;
    for (const std::int64_t e : t.shape) n *= e;
    Bytes bytes(static_cast<std::size_t>(n));
    for (std::byte& b : bytes) {
      x = x * 6364136223846793005U + 1442695040888963407U;
      b = static_cast<std::byte>(x >> 33 & 0xff);
    }
    for (std::int64_t s = 1; s <= step; ++s)
      for (std::int64_t i = 0; i < n / item; i += 9) {
        auto& low = bytes[static_cast<std::size_t>(i * item)];
        low = static_cast<std::byte>((std::to_integer<unsigned>(low) + 1) & 0xff);
      }
    out.push_back(std::move(bytes));
  }
  return out;
}

inline TensorBytes bytes_of(const std::vector<Bytes>& tensors) {
  return [&tensors](std::size_t t) { return View(tensors[t]); };
}

// The test's key, in a file that nobody else may read (a checkout does not keep that).
inline SigningKey test_key() {
  const std::string path = ::testing::TempDir() + "/signing-key-" + std::to_string(::getpid()) + ".pem";
  std::filesystem::copy_file(std::string(REFIT_GOLDEN_DIR) + "/signing-key.pem", path,
                             std::filesystem::copy_options::overwrite_existing);
  std::filesystem::permissions(path, std::filesystem::perms::owner_read);
  SigningKey key = SigningKey::read(path).value();
  std::filesystem::remove(path);
  return key;
}

inline PublishOptions small_options() {
  PublishOptions o;
  o.chunk_bytes = 256;
  o.object_bytes = 200;  // several objects a version
  o.anchor_every = 3;
  return o;
}

// Publishes steps first … last into `store`, each with the one before as its base.
inline std::vector<Published> publish_steps(ObjectStore& store, std::int64_t first, std::int64_t last,
                                            const PublishOptions& options = small_options()) {
  const Model model = small_model();
  auto publisher = Publisher::open(store, model, options, soon());
  EXPECT_TRUE(publisher.ok()) << publisher.error().to_string();
  std::vector<Published> out;
  for (std::int64_t s = first; s <= last; ++s) {
    const auto next = tensors_at(model, s), base = tensors_at(model, s - 1);
    auto p = publisher->publish(s, bytes_of(next), s > 0 ? bytes_of(base) : TensorBytes(), soon());
    EXPECT_TRUE(p.ok()) << p.error().to_string();
    if (p.ok()) out.push_back(*p);
  }
  return out;
}

// A reader with its mirror.
struct Reader {
  ObjectStore& store;
  std::unique_ptr<Follower> follower;
  std::vector<Bytes> mirror;

  explicit Reader(ObjectStore& s, FollowOptions options = {}) : store(s) {
    auto opened = Follower::open(s, std::move(options), soon());
    EXPECT_TRUE(opened.ok()) << opened.error().to_string();
    if (!opened.ok()) return;
    follower = std::make_unique<Follower>(std::move(*opened));
    for (std::size_t t = 0; t < follower->grid().tensors(); ++t)
      mirror.emplace_back(static_cast<std::size_t>(follower->grid().tensor_bytes(t)));
    attach(std::vector<bool>(follower->grid().chunks(), true));
  }
  void attach(std::vector<bool> wanted) {
    std::vector<std::byte*> at;
    for (Bytes& b : mirror) at.push_back(b.data());
    follower->attach(std::move(at), std::move(wanted));
  }
  Result<Fetched> newest() {
    REFIT_ASSIGN(const std::uint64_t number, follower->newest(soon()));
    return follower->fetch(number, soon());
  }
  bool holds(std::int64_t step) const { return mirror == tensors_at(follower->model(), step); }
};

// Every committed version can be read from nothing, and every manifest that stands has all its objects.
inline void expect_sound(MemoryStore& store) {
  for (const auto& [key, bytes] : store.objects) {
    if (!key.ends_with("/manifest")) continue;
    const auto m = read_manifest(bytes);
    ASSERT_TRUE(m.ok()) << m.error().to_string();
    for (std::uint32_t i = 0; i < m->objects.size(); ++i) {
      const auto it = store.objects.find(data_key(m->number, m->epoch, i));
      ASSERT_TRUE(it != store.objects.end()) << key << " names object " << i;
      EXPECT_EQ(std::ssize(it->second), m->objects[i]);
    }
  }
  for (const auto& [key, bytes] : store.objects) {
    const auto number = number_of_committed(key);
    if (!number) continue;
    Reader reader(store);
    const auto f = reader.follower->fetch(*number, soon());
    ASSERT_TRUE(f.ok()) << f.error().to_string();
    EXPECT_TRUE(reader.holds(f->step)) << "version " << *number;
  }
}

}  // namespace refit::store::testing
