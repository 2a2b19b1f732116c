// SHA-256 and Ed25519 (libcrypto): what guards bytes in a store that others may write to.
#pragma once
#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/core.h"

namespace refit::store {

struct Sha256 {
  std::array<std::byte, 32> bytes{};
  std::string hex() const;
  static std::optional<Sha256> from_hex(std::string_view text);
  friend auto operator<=>(const Sha256&, const Sha256&) = default;
};
Sha256 sha256(std::span<const std::byte> bytes);
Sha256 hmac_sha256(std::span<const std::byte> key, std::string_view text);

using PublicKey = std::array<std::byte, 32>;
using Signature = std::array<std::byte, 64>;

// An Ed25519 private key from a PEM file, as `openssl genpkey -algorithm ed25519` writes it. *thread-safe*.
class SigningKey {
 public:
  // Errors: kInvalid naming the path, also where others may read the file.
  static Result<SigningKey> read(const std::string& path);
  const PublicKey& public_key() const { return public_; }
  Signature sign(std::span<const std::byte> bytes) const;

 private:
  std::shared_ptr<void> key_;  // shared by copies of this object: an EVP_PKEY that never changes
  PublicKey public_{};
};
// The public half, from a PEM file (`openssl pkey -pubout`).
Result<PublicKey> read_public_key(const std::string& path);
bool verify(const PublicKey& key, std::span<const std::byte> bytes, const Signature& signature);

}  // namespace refit::store
