using System.Diagnostics;

namespace RtControl
{
    /// <summary>This client's clock: ns since it was first asked, plus one second. Never set back, unlike the time of day.</summary>
    public static class MonotonicClock
    {
        private const long NsPerSecond = 1000000000L;
        private static readonly long Origin = Stopwatch.GetTimestamp();

        public static long NowNs
        {
            get
            {
                long ticks = Stopwatch.GetTimestamp() - Origin;
                long rate = Stopwatch.Frequency;
                // In integers: a double would lose nanoseconds after days.
                return NsPerSecond + ticks / rate * NsPerSecond + ticks % rate * NsPerSecond / rate;
            }
        }
    }
}
