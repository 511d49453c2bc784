// The dumbbell of `tidegate sim`, in ns-3: the oracle of `cargo xtask ns3`.
//
//   sender i --- A === bottleneck === B --- receiver i        every link as fast, data one way
//
// A tenth of the one-way delay lies before A, a tenth behind B, the rest between them. The
// bottleneck marks every packet that finds `k` or more packets waiting (RED with both thresholds
// there, a weight of one and no gentle slope is exactly that), and holds 4,000. Sources are open
// loops: 64 KiB at a time, evenly, into a backlog without an end.
//
// QTCP is ns-3's own DCTCP with one line more: a cut is deeper by the quality factor where that is
// below one (Eq. 5). Q is the target over what was acknowledged per round trip, smoothed (Eq. 1).
// Ours takes the window for a bound of that (Eq. 10), which with windows of a hundred packets and
// more is to make no difference.
//
// Prints one JSON object. Build: see `xtask/src/ns3.rs`.

#include <algorithm>
#include <ctime>
#include <iostream>
#include <vector>

#include "ns3/applications-module.h"
#include "ns3/core-module.h"
#include "ns3/internet-module.h"
#include "ns3/network-module.h"
#include "ns3/point-to-point-module.h"
#include "ns3/tcp-dctcp.h"
#include "ns3/traffic-control-module.h"

using namespace ns3;

/// DCTCP whose cuts heed a target rate.
class Qtcp : public TcpDctcp {
public:
  static TypeId GetTypeId() {
    static TypeId id = TypeId("ns3::Qtcp").SetParent<TcpDctcp>().AddConstructor<Qtcp>();
    return id;
  }
  /// `target`: payload bytes per second; `gamma`: the weight of what was measured before.
  void Aim(double target, double gamma) {
    m_target = target;
    m_gamma = gamma;
  }
  Ptr<TcpCongestionOps> Fork() override { return CopyObject<Qtcp>(this); }
  std::string GetName() const override { return "Qtcp"; }
  uint32_t GetSsThresh(Ptr<const TcpSocketState> tcb, uint32_t inFlight) override {
    const double cut = TcpDctcp::GetSsThresh(tcb, inFlight);
    const double least = 2.0 * tcb->m_segmentSize;
    return std::max(least, m_quality < 1 ? cut * m_quality : cut);
  }
  void PktsAcked(Ptr<TcpSocketState> tcb, uint32_t segments, const Time &rtt) override {
    TcpDctcp::PktsAcked(tcb, segments, rtt);
    m_acked += double(segments) * tcb->m_segmentSize;
    if (tcb->m_lastAckedSeq < m_end) {
      return;
    }
    const Time now = Simulator::Now();
    if (m_began > Seconds(0)) {
      const double rate = m_acked / (now - m_began).GetSeconds();
      m_rate = m_rate > 0 ? (1 - m_gamma) * rate + m_gamma * m_rate : rate;
      m_quality = m_target > 0 ? m_target / m_rate : 1;
    }
    m_began = now;
    m_acked = 0;
    m_end = tcb->m_nextTxSequence;
  }

private:
  double m_target = 0, m_gamma = 0.5, m_rate = 0, m_quality = 1, m_acked = 0;
  Time m_began = Seconds(0);
  SequenceNumber32 m_end{0};
};

NS_OBJECT_ENSURE_REGISTERED(Qtcp);

/// Pushes 64 KiB after 64 KiB into a socket, whatever becomes of those before.
class Source {
public:
  Source(Ptr<Socket> socket, double gbps) : m_socket(socket) {
    m_every = Seconds(double(CHUNK) * 8 / (gbps * 1e9));
    m_socket->SetSendCallback(MakeCallback(&Source::Room, this));
  }
  void Start(Address to) {
    m_socket->Bind();
    m_socket->Connect(to);
    Offer();
  }

private:
  static constexpr uint32_t CHUNK = 65536;
  void Offer() {
    m_backlog += CHUNK;
    Push();
    Simulator::Schedule(m_every, &Source::Offer, this);
  }
  void Room(Ptr<Socket>, uint32_t) { Push(); }
  void Push() {
    while (m_backlog > 0) {
      const uint64_t room = std::min<uint64_t>(m_socket->GetTxAvailable(), CHUNK);
      const uint64_t bytes = std::min(m_backlog, room);
      if (bytes == 0 || m_socket->Send(Create<Packet>(bytes)) <= 0) {
        return;
      }
      m_backlog -= bytes;
    }
  }
  Ptr<Socket> m_socket;
  Time m_every;
  uint64_t m_backlog = 0;
};

namespace {
std::vector<uint64_t> received(3, 0);
std::vector<uint32_t> queue;
uint64_t drops = 0;
bool counting = false;

void Received(int flow, Ptr<const Packet> packet, const Address &) {
  if (counting) {
    received[flow] += packet->GetSize();
  }
}
void Look(Ptr<QueueDisc> disc, Time every) {
  if (counting) {
    queue.push_back(disc->GetNPackets());
  }
  Simulator::Schedule(every, &Look, disc, every);
}
} // namespace

int main(int argc, char **argv) {
  double rtt = 25, milliseconds = 50, skip = 10, gbps = 100, gamma = 0.5;
  uint32_t k = 140;
  bool qtcp = false;
  CommandLine line;
  line.AddValue("rtt", "round-trip time without queues, in microseconds", rtt);
  line.AddValue("ms", "simulated time, in milliseconds", milliseconds);
  line.AddValue("skip", "how much of it does not count, in milliseconds", skip);
  line.AddValue("gbps", "rate of every link", gbps);
  line.AddValue("k", "packets from which on packets are marked", k);
  line.AddValue("gamma", "QTCP: weight of what was measured before", gamma);
  line.AddValue("qtcp", "QTCP instead of DCTCP", qtcp);
  line.Parse(argc, argv);

  Config::SetDefault("ns3::TcpL4Protocol::SocketType", TypeIdValue(TcpDctcp::GetTypeId()));
  Config::SetDefault("ns3::TcpSocket::SegmentSize", UintegerValue(1448));
  Config::SetDefault("ns3::TcpSocket::DelAckCount", UintegerValue(1));
  Config::SetDefault("ns3::TcpSocket::InitialCwnd", UintegerValue(10));
  Config::SetDefault("ns3::TcpSocket::SndBufSize", UintegerValue(8 << 20));
  Config::SetDefault("ns3::TcpSocket::RcvBufSize", UintegerValue(8 << 20));
  Config::SetDefault("ns3::TcpSocketBase::MinRto", TimeValue(MilliSeconds(10)));
  Config::SetDefault("ns3::TcpSocketBase::Sack", BooleanValue(true));

  const std::vector<double> offered = {0.9 * gbps, 0.6 * gbps, 0.3 * gbps};
  const double payload = gbps * 1e9 / 8 * 1448 / 1502; // bytes per second of the bottleneck
  const std::vector<double> share = {3.0 / 6, 2.0 / 6, 1.0 / 6};
  NodeContainer senders(3), receivers(3), switches(2);
  InternetStackHelper stack;
  stack.InstallAll();

  PointToPointHelper link;
  const std::string rate = std::to_string(uint64_t(gbps * 1e9)) + "bps";
  link.SetDeviceAttribute("DataRate", StringValue(rate));
  const double oneWay = rtt / 2;
  Ipv4AddressHelper addresses("10.0.0.0", "255.255.255.0");
  std::vector<Ipv4Address> to;
  const auto join = [&](Ptr<Node> left, Ptr<Node> right, double part) {
    link.SetChannelAttribute("Delay", TimeValue(NanoSeconds(int64_t(oneWay * part * 1000))));
    return link.Install(left, right);
  };
  const auto number = [&](const NetDeviceContainer &devices) {
    const auto given = addresses.Assign(devices);
    addresses.NewNetwork();
    return given;
  };
  TrafficControlHelper fifo;
  fifo.SetRootQueueDisc("ns3::FifoQueueDisc", "MaxSize", QueueSizeValue(QueueSize("100000p")));
  for (int i = 0; i < 3; ++i) {
    const auto devices = join(senders.Get(i), switches.Get(0), 0.1);
    fifo.Install(devices);
    number(devices);
  }
  link.SetQueue("ns3::DropTailQueue", "MaxSize", QueueSizeValue(QueueSize("1p")));
  const auto middle = join(switches.Get(0), switches.Get(1), 0.8);
  TrafficControlHelper red;
  red.SetRootQueueDisc("ns3::RedQueueDisc", "UseEcn", BooleanValue(true), "UseHardDrop",
                       BooleanValue(false), "Gentle", BooleanValue(false), "QW", DoubleValue(1),
                       "MinTh", DoubleValue(k), "MaxTh", DoubleValue(k), "MaxSize",
                       QueueSizeValue(QueueSize("4000p")), "MeanPktSize", UintegerValue(1502),
                       "LinkBandwidth", StringValue(rate));
  const Ptr<QueueDisc> bottleneck = red.Install(middle.Get(0)).Get(0);
  number(middle);
  link.SetQueue("ns3::DropTailQueue", "MaxSize", QueueSizeValue(QueueSize("100p")));
  for (int i = 0; i < 3; ++i) {
    const auto devices = join(switches.Get(1), receivers.Get(i), 0.1);
    fifo.Install(devices);
    to.push_back(number(devices).GetAddress(1));
  }
  Ipv4GlobalRoutingHelper::PopulateRoutingTables();

  std::vector<Source> sources;
  sources.reserve(3);
  for (int i = 0; i < 3; ++i) {
    PacketSinkHelper sink("ns3::TcpSocketFactory", InetSocketAddress(Ipv4Address::GetAny(), 5000));
    sink.Install(receivers.Get(i)).Get(0)->TraceConnectWithoutContext("Rx", MakeBoundCallback(&Received, i));
    Ptr<Socket> socket = Socket::CreateSocket(senders.Get(i), TcpSocketFactory::GetTypeId());
    if (qtcp) {
      Ptr<Qtcp> law = CreateObject<Qtcp>();
      law->Aim(payload * share[i], gamma);
      DynamicCast<TcpSocketBase>(socket)->SetCongestionControlAlgorithm(law);
    }
    sources.emplace_back(socket, offered[i]);
    Simulator::Schedule(MicroSeconds(1), &Source::Start, &sources[i], Address(InetSocketAddress(to[i], 5000)));
  }
  bottleneck->TraceConnectWithoutContext(
      "Drop", Callback<void, Ptr<const QueueDiscItem>>([](Ptr<const QueueDiscItem>) { ++drops; }));
  Simulator::Schedule(Seconds(skip / 1e3), [] { counting = true; });
  Simulator::Schedule(MicroSeconds(1), &Look, bottleneck, MicroSeconds(1));

  const std::clock_t start = std::clock();
  Simulator::Stop(Seconds(milliseconds / 1e3));
  Simulator::Run();
  const double cpu = double(std::clock() - start) / CLOCKS_PER_SEC;

  const double counted = (milliseconds - skip) / 1e3;
  std::sort(queue.begin(), queue.end());
  double sum = 0;
  for (uint32_t packets : queue) {
    sum += packets;
  }
  std::cout << "{\"goodput_gbps\":[";
  for (int i = 0; i < 3; ++i) {
    std::cout << (i ? "," : "") << received[i] * 8 / counted / 1e9;
  }
  std::cout << "],\"queue_mean\":" << sum / queue.size()
            << ",\"queue_p99\":" << queue[queue.size() * 99 / 100]
            << ",\"queue_max\":" << queue.back() << ",\"drops\":" << drops
            << ",\"events\":" << Simulator::GetEventCount() << ",\"cpu_seconds\":" << cpu << "}\n";
  Simulator::Destroy();
}
