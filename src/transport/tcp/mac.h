// Authentication of frames: GMAC with a key of its own per connection and direction, and a counter as nonce (rule Z5).
#pragma once
#include <memory>

#include "transport/tcp/frame.h"

struct evp_cipher_ctx_st;

namespace refit::transport::tcp {

// *thread-compatible*.
class Gmac {
 public:
  static Result<Gmac> make(const Key& key);
  // The tag of the next frame in this direction: over its header and payload. A failure shows in finish().
  void begin(std::span<const std::byte> header);
  void add(std::span<const std::byte> payload);  // at most kMaxChunk bytes
  Result<Tag> finish();

 private:
  struct Free {
    void operator()(evp_cipher_ctx_st* context) const;
  };
  std::unique_ptr<evp_cipher_ctx_st, Free> context_;
  std::uint64_t counter_ = 0;
  bool good_ = true;
};

// Both directions of one connection. The key in the listener's card admits; the nonces make each connection new.
struct ConnectionKeys {
  Key to_listener{}, to_connector{};
};
Result<ConnectionKeys> derive_keys(const Key& card_key, const Hello& hello, const Nonce& listener_nonce);
bool same_tag(const Tag& a, std::span<const std::byte> b);  // in constant time
Status fresh(std::span<std::byte> out);                     // unpredictable bytes

}  // namespace refit::transport::tcp
