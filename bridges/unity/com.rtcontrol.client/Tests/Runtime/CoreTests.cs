using System.Collections.Generic;
using System.Diagnostics;
using NUnit.Framework;

namespace RtControl.Tests
{
    /// <summary>What differs between runtimes (IL2CPP, Mono): bytes, clock, threads. The vectors run outside of Unity.</summary>
    public sealed class CoreTests
    {
        private enum Side
        {
            Left,
            FarRight,
        }

        private sealed class Box
        {
            public Side Last;

            [RtTool("Dash.")]
            public void Dash(Side side)
            {
                Last = side;
            }
        }

        [Test]
        public void MessageComesBackAsItWas()
        {
            var ping = new RtMap { { "type", "ping" }, { "id", 7L }, { "t_ns", 6000000000L } };
            List<byte[]> parts = Codec.Encode(ping);
            Assert.AreEqual(ping, Codec.Decode(parts));
        }

        [Test]
        public void ClockRuns()
        {
            long before = MonotonicClock.NowNs;
            Assert.GreaterOrEqual(MonotonicClock.NowNs, before);
            Assert.Greater(before, 0);
        }

        [Test]
        public void MarkedMethodIsFoundAndInvoked()
        {
            var box = new Box();
            new RtToolSet(box).Invoke(new RtCall("dash", new RtMap { { "side", "far_right" } }));
            Assert.AreEqual(Side.FarRight, box.Last);
        }

        [Test]
        public void ClientWithoutServerClosesAtOnce()
        {
            var client = new RtClient(new RtOptions { Endpoint = "tcp://127.0.0.1:9" }, act => null);
            var watch = Stopwatch.StartNew();
            client.Dispose();
            Assert.Less(watch.ElapsedMilliseconds, 100);
            Assert.IsNotNull(client.Ended);
        }
    }
}
