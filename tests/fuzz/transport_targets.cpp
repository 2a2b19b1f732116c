// What movers read from each other before anything is proven: cards, handshakes, frame heads, descriptors.
#include "fuzz/fuzz.h"
#include "transport/shm/card.h"
#include "transport/tcp/frame.h"
#include "transport/zmq/card.h"
#include "transport/zmq_sparse/card.h"

namespace refit::fuzz {
namespace {

using namespace transport;

// What decode accepts is what encode writes, as far as the head goes.
template <auto Decode, std::size_t Head>
bool head(View in) {
  const auto read = Decode(in);
  if (!read.ok()) return false;
  const auto again = encode(*read);
  REFIT_FUZZ_CHECK(in.size() >= Head && again.size() >= Head &&
                   std::equal(again.begin(), again.begin() + Head, in.begin()));
  return true;
}

template <auto Decode>
bool fixed(View in) {
  const auto read = Decode(in);
  if (!read.ok()) return false;
  const auto again = encode(*read);
  REFIT_FUZZ_CHECK(std::equal(in.begin(), in.end(), again.begin(), again.end()));
  return true;
}

bool descriptor(View in) {
  Bytes bytes(in.begin(), in.end());
  if (bytes.size() >= 8) put_little(bytes, bytes.size() - 8, hash128(View(bytes).first(bytes.size() - 8)).lo);
  const auto read = shm::decode_descriptor(bytes);
  if (!read.ok()) return false;
  for (const shm::LentRegion& g : read->regions)
    REFIT_FUZZ_CHECK(g.offset >= 0 && g.bytes >= 0 && g.offset <= g.file_bytes && g.bytes <= g.file_bytes - g.offset);
  REFIT_FUZZ_CHECK(encode(*read) == bytes);
  return true;
}

bool kind(View in) { return zmq::decode(in).ok(); }

const LaneId kLane{{1, 2}, {{3, 4}, Epoch(5), 6}, Incarnation(7)};

template <typename T>
std::vector<Bytes> one(const T& v) {
  return {encode(v)};
}

std::vector<Bytes> tcp_headers() {
  std::vector<Bytes> out;
  for (const auto type : {tcp::Type::kOffer, tcp::Type::kGrant, tcp::Type::kDone, tcp::Type::kBeat}) {
    tcp::Header h;
    h.type = type;
    h.id = kLane;
    h.bucket = BucketId(8);
    h.bytes = type == tcp::Type::kOffer ? 100 : 0;
    if (type == tcp::Type::kBeat) h.bucket = {}, h.id = {};
    out.push_back(encode(h));
  }
  return out;
}

std::vector<Bytes> sparse_heads() {
  zmq_sparse::Head h;
  h.type = zmq_sparse::Type::kOffer;
  h.from = 3;
  h.process = Incarnation(9);
  h.id = kLane;
  h.bucket = BucketId(8);
  h.bytes = 100;
  return one(h);
}

}  // namespace

std::vector<Target> transport_targets() {
  return {
      {"shm_card", fixed<shm::decode_card>,
       [] {
         return one(shm::Card{{1, 2}, 3, Incarnation(4), 5});
       }},
      {"shm_request", fixed<shm::decode_request>,
       [] {
         return one(shm::Request{shm::Ask::kFile, 6, {{1, 2}, 3, Incarnation(4), 5}});
       }},
      {"shm_reply", fixed<shm::decode_reply>,
       [] {
         return one(shm::Reply{shm::Answer::kYes, 6, 4096});
       }},
      {"shm_descriptor", descriptor,
       [] {
         return one(shm::Descriptor{kLane, 1, 2, MemoryEpoch(3), {{1, 8192, 4096, 100}, {}}});
       }},
      {"tcp_card", fixed<tcp::decode_card>,
       [] {
         return one(tcp::Card{{1, 2}, 3, Incarnation(4), tcp::Security::kMac, {}, 77, "127.0.0.1"});
       }},
      {"tcp_hello", fixed<tcp::decode_hello>,
       [] {
         return one(tcp::Hello{{1, 2}, 3, 4, Incarnation(5), Incarnation(6), tcp::Security::kMac, 1, {}});
       }},
      {"tcp_welcome", fixed<tcp::decode_welcome>, [] { return one(tcp::Welcome{}); }},
      {"tcp_header", head<tcp::decode_header, tcp::kHeaderBytes>, tcp_headers},
      {"zmq_message", kind,
       [] {
         return std::vector<Bytes>{zmq::encode(zmq::Kind::kHello), zmq::encode(zmq::Kind::kFull, bytes_of("x"))};
       }},
      {"zmq_sparse_card", fixed<zmq_sparse::decode_card>,
       [] {
         return one(zmq_sparse::Card{
             {1, 2}, 3, Incarnation(4), Bytes(zmq_sparse::kKeyBytes, std::byte{7}), "tcp://127.0.0.1:99"});
       }},
      {"zmq_sparse_head", head<zmq_sparse::decode_head, zmq_sparse::kHeadBytes>, sparse_heads},
  };
}

}  // namespace refit::fuzz
