// Every target over its seeds, the kept corpus and seeded mutations of both: what a coverage-guided run found stays
// found.
//   fuzz_replay [--target NAME] [--seconds S] [--seed N]   S per target (0.3)
//   fuzz_replay --write DIR                                seeds and kept corpus as files, DIR/TARGET/…, for libFuzzer
//   fuzz_replay --keep DIR                                 DIR/TARGET/… back into the kept corpus
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>

#include "fuzz/fuzz.h"

namespace refit::fuzz {
namespace {

const std::string kCorpus = REFIT_FUZZ_CORPUS;

// One file a target: a 4-byte little-endian length before each entry.
std::vector<Bytes> kept(const std::string& target) {
  const std::string path = kCorpus + "/" + target + ".corpus";
  std::vector<Bytes> out;
  if (!std::filesystem::exists(path)) return out;
  const Bytes all = file(path);
  for (std::size_t at = 0; at + 4 <= all.size();) {
    std::size_t n = 0;
    for (std::size_t i = 0; i < 4; ++i) n |= std::to_integer<std::size_t>(all[at + i]) << (8 * i);
    REFIT_FUZZ_CHECK(n <= all.size() - at - 4);
    out.emplace_back(all.begin() + static_cast<std::ptrdiff_t>(at + 4),
                     all.begin() + static_cast<std::ptrdiff_t>(at + 4 + n));
    at += 4 + n;
  }
  return out;
}

Bytes mutated(const Bytes& from, const Bytes& other, std::mt19937_64& random) {
  static constexpr std::uint64_t kNumbers[] = {0,
                                               1,
                                               0x7f,
                                               0x80,
                                               0xff,
                                               0x7fff,
                                               0x8000,
                                               0xffff,
                                               0x7fffffff,
                                               0x80000000,
                                               0xffffffff,
                                               ~std::uint64_t{0} >> 1,
                                               ~std::uint64_t{0}};
  Bytes b = from;
  for (std::uint64_t edits = 1 + random() % 4; edits > 0; --edits) {
    const std::size_t at = b.empty() ? 0 : random() % b.size();
    switch (random() % 7) {
      case 0:
        if (!b.empty()) b[at] ^= static_cast<std::byte>(1u << random() % 8);
        break;
      case 1:
        if (!b.empty()) b[at] = static_cast<std::byte>(random());
        break;
      case 2:
        if (b.size() >= 8) {
          const std::size_t width = std::size_t{1} << random() % 4, start = random() % (b.size() - 7);
          const std::uint64_t v = kNumbers[random() % std::size(kNumbers)];
          std::memcpy(b.data() + start, &v, width);
        }
        break;
      case 3:
        b.resize(at);
        break;
      case 4:
        b.insert(b.begin() + static_cast<std::ptrdiff_t>(at), 1 + random() % 8, static_cast<std::byte>(random()));
        break;
      case 5:
        b.erase(b.begin() + static_cast<std::ptrdiff_t>(at),
                b.begin() + static_cast<std::ptrdiff_t>(std::min(b.size(), at + 1 + random() % 8)));
        break;
      default:
        if (!other.empty()) {
          const std::size_t start = random() % other.size(),
                            n = std::min<std::size_t>(other.size() - start, 1 + random() % 64);
          b.insert(b.begin() + static_cast<std::ptrdiff_t>(at), other.begin() + static_cast<std::ptrdiff_t>(start),
                   other.begin() + static_cast<std::ptrdiff_t>(start + n));
        }
    }
  }
  return b;
}

// False where a well-formed seed is refused: then the target tests nothing behind that refusal.
bool replay(const Target& target, double seconds, std::uint64_t seed) {
  std::vector<Bytes> from = target.seeds();
  bool good = !from.empty();
  for (const Bytes& s : from) good = target.run(s) && good;
  if (!good) std::fprintf(stderr, "%s: a well-formed seed is refused, or there is none\n", target.name);
  const std::size_t seeds = from.size();
  for (Bytes& b : kept(target.name)) {
    (void)target.run(b);
    from.push_back(std::move(b));
  }
  std::mt19937_64 random(seed);
  std::uint64_t runs = 0, accepted = 0;
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!from.empty() && std::chrono::steady_clock::now() < end)
    for (int i = 0; i < 16; ++i, ++runs)
      accepted += target.run(mutated(from[random() % from.size()], from[random() % from.size()], random));
  std::printf("%-16s %4zu seeds %5zu kept %9llu mutations, %llu accepted\n", target.name, seeds, from.size() - seeds,
              static_cast<unsigned long long>(runs), static_cast<unsigned long long>(accepted));
  return good;
}

void write(const Target& target, const std::string& directory) {
  const std::string own = directory + "/" + target.name;
  std::filesystem::create_directories(own);
  std::vector<Bytes> all = target.seeds();
  for (Bytes& b : kept(target.name)) all.push_back(std::move(b));
  for (std::size_t i = 0; i < all.size(); ++i)
    std::ofstream(own + "/seed-" + std::to_string(i), std::ios::binary)
        .write(reinterpret_cast<const char*>(all[i].data()), static_cast<std::streamsize>(all[i].size()));
}

void keep(const Target& target, const std::string& directory) {
  std::filesystem::create_directories(kCorpus);
  std::ofstream out(kCorpus + "/" + target.name + ".corpus", std::ios::binary);
  const std::string own = directory + "/" + target.name;
  if (!std::filesystem::exists(own)) return;
  for (const Bytes& b : files(own, "")) {
    for (int i = 0; i < 4; ++i) out.put(static_cast<char>(b.size() >> (8 * i) & 0xff));
    out.write(reinterpret_cast<const char*>(b.data()), static_cast<std::streamsize>(b.size()));
  }
}

int main(int argc, char** argv) {
  std::map<std::string, std::string> options;
  for (int i = 1; i + 1 < argc; i += 2) options[argv[i]] = argv[i + 1];
  const double seconds = options.contains("--seconds") ? std::stod(options["--seconds"]) : 0.3;
  const std::uint64_t seed = options.contains("--seed") ? std::stoull(options["--seed"]) : 20261130;
  bool good = true, found = false;
  for (const Target& target : all_targets()) {
    if (options.contains("--target") && options["--target"] != target.name) continue;
    found = true;
    if (options.contains("--write"))
      write(target, options["--write"]);
    else if (options.contains("--keep"))
      keep(target, options["--keep"]);
    else
      good = replay(target, seconds, seed) && good;
  }
  if (!found) std::fprintf(stderr, "fuzz_replay: no such target\n");
  return good && found ? 0 : 1;
}

}  // namespace
}  // namespace refit::fuzz

int main(int argc, char** argv) { return refit::fuzz::main(argc, argv); }
