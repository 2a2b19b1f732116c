#include "store/digest.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/pem.h>
#include <openssl/sha.h>
#include <sys/stat.h>

#include <cstdio>

namespace refit::store {
namespace {

const unsigned char* raw(std::span<const std::byte> b) { return reinterpret_cast<const unsigned char*>(b.data()); }

struct CloseFile {
  void operator()(std::FILE* f) const { std::fclose(f); }
};
using OpenFile = std::unique_ptr<std::FILE, CloseFile>;

Result<OpenFile> open_key_file(const std::string& path, bool secret) {
  OpenFile file(std::fopen(path.c_str(), "re"));
  struct stat s {};
  if (!file || ::fstat(::fileno(file.get()), &s) != 0) return Error(Code::kInvalid, path + ": cannot be read");
  if (secret && (s.st_mode & 077) != 0)
    return Error(Code::kInvalid, path + ": others may read this private key; chmod 600 it");
  return file;
}

Result<PublicKey> public_of(EVP_PKEY* key, const std::string& path) {
  PublicKey out{};
  std::size_t n = out.size();
  if (EVP_PKEY_get_base_id(key) != EVP_PKEY_ED25519 ||
      EVP_PKEY_get_raw_public_key(key, reinterpret_cast<unsigned char*>(out.data()), &n) != 1 || n != out.size())
    return Error(Code::kInvalid, path + ": not an Ed25519 key (openssl genpkey -algorithm ed25519)");
  return out;
}

using KeyPointer = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
using DigestPointer = std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)>;

}  // namespace

std::string Sha256::hex() const {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (const std::byte b : bytes) {
    out.push_back(kDigits[std::to_integer<unsigned>(b) >> 4]);
    out.push_back(kDigits[std::to_integer<unsigned>(b) & 15u]);
  }
  return out;
}

std::optional<Sha256> Sha256::from_hex(std::string_view text) {
  if (text.size() != 64) return std::nullopt;
  const auto hi = Hash128::from_hex(text.substr(0, 32)), lo = Hash128::from_hex(text.substr(32));
  if (!hi || !lo) return std::nullopt;
  Sha256 out;
  const std::uint64_t words[] = {hi->hi, hi->lo, lo->hi, lo->lo};
  for (std::size_t i = 0; i < 32; ++i) out.bytes[i] = static_cast<std::byte>(words[i / 8] >> (56 - 8 * (i % 8)));
  return out;
}

Sha256 sha256(std::span<const std::byte> bytes) {
  Sha256 out;
  SHA256(raw(bytes), bytes.size(), reinterpret_cast<unsigned char*>(out.bytes.data()));
  return out;
}

Sha256 hmac_sha256(std::span<const std::byte> key, std::string_view text) {
  Sha256 out;
  unsigned n = 0;
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), reinterpret_cast<const unsigned char*>(text.data()),
       text.size(), reinterpret_cast<unsigned char*>(out.bytes.data()), &n);
  return out;
}

Result<SigningKey> SigningKey::read(const std::string& path) {
  REFIT_ASSIGN(const OpenFile file, open_key_file(path, true));
  char no_phrase[] = "";  // else OpenSSL asks on the terminal
  EVP_PKEY* key = PEM_read_PrivateKey(file.get(), nullptr, nullptr, no_phrase);
  if (key == nullptr) return Error(Code::kInvalid, path + ": no private key in PEM form without a pass phrase");
  SigningKey out;
  out.key_ = std::shared_ptr<void>(key, [](void* k) { EVP_PKEY_free(static_cast<EVP_PKEY*>(k)); });
  REFIT_ASSIGN(out.public_, public_of(key, path));
  return out;
}

Signature SigningKey::sign(std::span<const std::byte> bytes) const {
  Signature out{};
  std::size_t n = out.size();
  const DigestPointer context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  const bool done =
      EVP_DigestSignInit(context.get(), nullptr, nullptr, nullptr, static_cast<EVP_PKEY*>(key_.get())) == 1 &&
      EVP_DigestSign(context.get(), reinterpret_cast<unsigned char*>(out.data()), &n, raw(bytes), bytes.size()) == 1;
  REFIT_CHECK(done && n == out.size());
  return out;
}

Result<PublicKey> read_public_key(const std::string& path) {
  REFIT_ASSIGN(const OpenFile file, open_key_file(path, false));
  char no_phrase[] = "";
  const KeyPointer key(PEM_read_PUBKEY(file.get(), nullptr, nullptr, no_phrase), EVP_PKEY_free);
  if (!key) return Error(Code::kInvalid, path + ": no public key in PEM form (openssl pkey -pubout)");
  return public_of(key.get(), path);
}

bool verify(const PublicKey& key, std::span<const std::byte> bytes, const Signature& signature) {
  const KeyPointer pkey(EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, nullptr, raw(key), key.size()), EVP_PKEY_free);
  const DigestPointer context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  return pkey && EVP_DigestVerifyInit(context.get(), nullptr, nullptr, nullptr, pkey.get()) == 1 &&
         EVP_DigestVerify(context.get(), raw(signature), signature.size(), raw(bytes), bytes.size()) == 1;
}

}  // namespace refit::store
