using System;
using System.Diagnostics;

namespace RtControl
{
    /// <summary>
    /// This client's clock: ns since it was first asked, plus one second. Never set back, unlike the time of day, and counts
    /// while the machine is suspended.
    /// </summary>
    public static class MonotonicClock
    {
        private const long NsPerSecond = 1000000000L;
        private static readonly long Origin = Stopwatch.GetTimestamp();
        private static readonly DateTime Epoch = new DateTime(1970, 1, 1, 0, 0, 0, DateTimeKind.Utc);
        private static readonly SleepCounter Sleep = new SleepCounter();

        public static long NowNs
        {
            get
            {
                lock (Sleep)
                {
                    long ticks = Stopwatch.GetTimestamp() - Origin;
                    long rate = Stopwatch.Frequency;
                    // In integers: a double would lose nanoseconds after days.
                    long ns = NsPerSecond + ticks / rate * NsPerSecond + ticks % rate * NsPerSecond / rate;
                    return Sleep.Add(ns, (DateTime.UtcNow - Epoch).Ticks * 100);
                }
            }
        }
    }

    /// <summary>
    /// Counts how long the machine was suspended: the time of day jumps ahead then, while a stopwatch may stand still. A clock
    /// that is put forward counts, too: calls then end too early, never too late.
    /// </summary>
    public sealed class SleepCounter
    {
        private const long LeastNs = 250000000L; // less is how a clock is adjusted
        private long _lastNs, _lastWallNs = long.MaxValue, _sleptNs;

        /// <summary>A time of the stopwatch, which is `wallNs` by the time of day, with all suspensions so far.</summary>
        public long Add(long ns, long wallNs)
        {
            long jumpNs = wallNs - _lastWallNs - (ns - _lastNs);
            if (jumpNs > LeastNs) _sleptNs += jumpNs;
            _lastNs = ns;
            _lastWallNs = wallNs;
            return ns + _sleptNs;
        }
    }
}
