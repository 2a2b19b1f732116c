#include "transport/tcp/mac.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

namespace refit::transport::tcp {
namespace {

Error broken(const char* what) { return Error(Code::kInternal, std::string("libcrypto: ") + what + " failed"); }
const unsigned char* raw(const std::byte* p) { return reinterpret_cast<const unsigned char*>(p); }

Result<Key> derive(const Key& key, std::string_view label, const Hello& hello, const Nonce& listener) {
  Bytes text;
  for (char c : label) text.push_back(static_cast<std::byte>(c));
  const Bytes bound = encode(hello);  // who talks to whom, and the connector's nonce
  text.insert(text.end(), bound.begin(), bound.end());
  text.insert(text.end(), listener.begin(), listener.end());
  Key out{};
  unsigned int size = 0;
  if (HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), raw(text.data()), text.size(),
           reinterpret_cast<unsigned char*>(out.data()), &size) == nullptr ||
      size != out.size())
    return broken("HMAC");
  return out;
}

}  // namespace

void Gmac::Free::operator()(evp_cipher_ctx_st* context) const { EVP_CIPHER_CTX_free(context); }

Result<Gmac> Gmac::make(const Key& key) {
  Gmac out;
  out.context_.reset(EVP_CIPHER_CTX_new());
  if (!out.context_ ||
      EVP_EncryptInit_ex(out.context_.get(), EVP_aes_256_gcm(), nullptr, raw(key.data()), nullptr) != 1)
    return broken("AES-256-GCM");
  return out;
}

void Gmac::begin(std::span<const std::byte> header) {
  std::array<unsigned char, 12> nonce{};
  for (std::size_t i = 0; i < 8; ++i) nonce[4 + i] = static_cast<unsigned char>(counter_ >> (8 * i));
  ++counter_;
  good_ = EVP_EncryptInit_ex(context_.get(), nullptr, nullptr, nullptr, nonce.data()) == 1;
  add(header);
}

void Gmac::add(std::span<const std::byte> payload) {
  int n = 0;
  good_ = good_ &&
          EVP_EncryptUpdate(context_.get(), nullptr, &n, raw(payload.data()), static_cast<int>(payload.size())) == 1;
}

Result<Tag> Gmac::finish() {
  std::array<unsigned char, kTagBytes> none;
  Tag tag{};
  int n = 0;
  good_ = good_ && EVP_EncryptFinal_ex(context_.get(), none.data(), &n) == 1 &&
          EVP_CIPHER_CTX_ctrl(context_.get(), EVP_CTRL_GCM_GET_TAG, static_cast<int>(kTagBytes), tag.data()) == 1;
  if (!good_) return broken("GMAC");
  return tag;
}

Result<ConnectionKeys> derive_keys(const Key& key, const Hello& hello, const Nonce& listener) {
  ConnectionKeys out;
  REFIT_ASSIGN(out.to_listener, derive(key, "refit tcp to listener", hello, listener));
  REFIT_ASSIGN(out.to_connector, derive(key, "refit tcp to connector", hello, listener));
  return out;
}

bool same_tag(const Tag& a, std::span<const std::byte> b) {
  return b.size() == a.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

Status fresh(std::span<std::byte> out) {
  if (RAND_bytes(reinterpret_cast<unsigned char*>(out.data()), static_cast<int>(out.size())) != 1)
    return broken("RAND_bytes");
  return {};
}

}  // namespace refit::transport::tcp
