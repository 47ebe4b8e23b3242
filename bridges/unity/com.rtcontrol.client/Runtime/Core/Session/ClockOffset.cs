using System.Collections.Generic;

namespace RtControl
{
    /// <summary>How far the server's clock is from ours, by four stamps (docs/protocol.md, section 6).</summary>
    public sealed class ClockOffset
    {
        private const int Window = 16;
        private const long MaxAgeNs = 60000000000L;

        private struct Sample
        {
            public long AtNs;
            public long OffsetNs;
            public long RttNs;
        }

        private readonly List<Sample> _samples = new List<Sample>();

        /// <summary>The server's clock minus ours; meaningful where <see cref="Known"/>.</summary>
        public long OffsetNs { get; private set; }

        /// <summary>The round trip of the sample that is believed; the true offset lies within half of it.</summary>
        public long RttNs { get; private set; }

        public bool Known { get; private set; }

        /// <summary>Asked at t0 and answered at t3 on our clock, received at t1 and sent at t2 on theirs.</summary>
        public void Add(long t0Ns, long t1Ns, long t2Ns, long t3Ns)
        {
            long rttNs = (t3Ns - t0Ns) - (t2Ns - t1Ns);
            if (rttNs >= 0 && t3Ns >= t0Ns && t2Ns >= t1Ns)
            {
                long twice = (t1Ns - t0Ns) + (t2Ns - t3Ns);
                _samples.Add(new Sample { AtNs = t3Ns, OffsetNs = twice >> 1, RttNs = rttNs });
                if (_samples.Count > Window) _samples.RemoveAt(0);
            }
            Look(t3Ns);
        }

        /// <summary>Lets go of what is too old to be believed.</summary>
        public void Look(long nowNs)
        {
            _samples.RemoveAll(s => nowNs - s.AtNs > MaxAgeNs);
            Known = _samples.Count > 0;
            RttNs = long.MaxValue;
            // The newest of equal ones, since clocks drift.
            foreach (Sample sample in _samples)
            {
                if (sample.RttNs > RttNs) continue;
                OffsetNs = sample.OffsetNs;
                RttNs = sample.RttNs;
            }
        }
    }
}
