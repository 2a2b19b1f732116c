// Stream: one TCP connection between two movers: the handshake, frames out (control first, then chunks of lent memory),
// frames in (payload straight into staging).
#pragma once
#include <deque>
#include <memory>
#include <optional>

#include "transport/common/push.h"
#include "transport/tcp/mac.h"

namespace refit::transport::tcp {

// A post on its way to one recipient.
struct Outgoing {
  enum class State : std::uint8_t { kQueued, kOffered, kGranted };
  std::shared_ptr<const Post> post;  // shared by its recipients
  LaneId id;
  std::uint64_t lane = 0;  // serial of the lane that posted it
  State state = State::kQueued;
  Cursor cursor;          // where the next chunk starts
  std::uint64_t cut = 0;  // bytes given to streams so far
  std::int64_t progress_ns = 0;
  std::optional<Error> error;  // ends so once no stream sends a chunk of it
};

// A bucket that is being received.
struct Incoming {
  LaneId id;  // as the sender writes it
  std::uint32_t sender = 0;
  BucketId bucket;
  std::uint64_t bytes = 0, have = 0;
  Staging::Slot slot;
  std::map<std::uint64_t, std::uint64_t> claimed;  // ranges that frames announced: start → end
  bool dropped = false;                            // its lane is over: what still comes counts for nothing
  std::int64_t progress_ns = 0;
  // False when the range was announced before.
  bool claim(std::uint64_t offset, std::uint64_t length);
};

class Stream;
// What a stream tells its owner. Called on the loop, with the owner's lock held.
class StreamOwner {
 public:
  virtual ~StreamOwner() = default;
  // A connector asks to come in: the answer, and the key that its frames must be made with.
  virtual Answer admit(Stream& stream, const Hello& hello) = 0;
  virtual void opened(Stream& stream) = 0;
  virtual void frame(Stream& stream, const Header& header) = 0;  // without payload
  // Where the payload of a data frame goes; null: read and thrown away. An error ends the stream.
  virtual Result<std::shared_ptr<Incoming>> sink(Stream& stream, const Header& header) = 0;
  virtual void arrived(Stream& stream, const Header& header, const std::shared_ptr<Incoming>& incoming) = 0;
  virtual std::int64_t now() const = 0;
};

// *loop-only*, except that aborting callers doom it under the owner's lock.
class Stream {
 public:
  // The connector's end. `key` is of the listener's card.
  Stream(StreamOwner& owner, Fd fd, const Hello& hello, const Key& key);
  // The listener's end: `key` is its own card's.
  Stream(StreamOwner& owner, Fd fd, Security security, const Key& key);

  int fd() const { return fd_.get(); }
  bool outgoing() const { return outgoing_; }
  bool open() const { return state_ == State::kOpen; }
  // The other end has made one good frame: with `mac` it knows the key.
  bool proven() const { return proven_; }
  bool dead() const { return state_ == State::kDead; }
  const Hello& hello() const { return hello_; }
  const Error& why() const { return why_; }
  std::int64_t seen_ns = 0, sent_ns = 0, born_ns = 0;

  bool wants_write() const { return state_ == State::kConnecting || !control_.empty() || chunk_.has_value(); }
  // Ready for a chunk. Frames are tagged when they are queued, so they leave in that order.
  bool idle() const { return state_ == State::kOpen && control_.empty() && !chunk_; }
  const Outgoing* sending() const { return chunk_ ? chunk_->of.get() : nullptr; }
  void send(const Header& header);
  void send_chunk(std::shared_ptr<Outgoing> of, std::uint32_t length);
  // Moves what the socket takes now, a bounded amount.
  void readable();
  void writable();
  // The lent memory is not touched any more; the frame in hand cannot be finished, so neither can the connection.
  void doom(Error why);
  std::uint64_t bytes_in = 0, bytes_out = 0;

 private:
  enum class State : std::uint8_t { kConnecting, kHello, kOpen, kDead };
  struct Chunk {
    std::shared_ptr<Outgoing> of;  // shared with the link's queue
    Bytes head;
    std::size_t head_done = 0;
    Cursor at;
    std::uint64_t left = 0;
  };
  void greet();
  bool read_exact(std::size_t want);  // into head_; false when there is less yet
  void read_handshake();
  void read_welcome();
  void answer_hello();
  bool read_frame();
  bool read_payload();
  bool finish_payload();
  bool verify();
  bool flush_control();
  bool flush_chunk();
  Status keys(const Nonce& listener);
  Status tag(Bytes& head, const Post* post, Cursor at, std::uint64_t length);
  bool failed(ssize_t n, const char* what);

  StreamOwner& owner_;
  Fd fd_;
  const bool outgoing_;
  const Security security_;
  const Key key_;
  Hello hello_;
  State state_;
  Error why_;
  bool proven_ = false;
  std::optional<Gmac> mac_out_, mac_in_;
  std::deque<Bytes> control_;
  std::size_t control_done_ = 0;
  std::optional<Chunk> chunk_;
  std::array<std::byte, kFrameBytes> head_{};
  std::size_t head_have_ = 0;
  bool in_payload_ = false;
  Header header_;
  std::shared_ptr<Incoming> incoming_;
  std::uint32_t payload_have_ = 0;
};

}  // namespace refit::transport::tcp
