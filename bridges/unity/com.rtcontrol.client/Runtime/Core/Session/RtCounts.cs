namespace RtControl
{
    /// <summary>What a client counted since it was made.</summary>
    public struct RtCounts
    {
        /// <summary>Observations given.</summary>
        public long Observed;

        /// <summary>Observations replaced by newer ones before they were sent.</summary>
        public long Superseded;

        /// <summary>Call messages by status.</summary>
        public long Fresh, Held, Safe;

        /// <summary>Calls that ran out of their time-to-live: on the way, in force, or before the main thread came.</summary>
        public long Expired;

        /// <summary>Acts that a newer one replaced before the main thread came.</summary>
        public long Skipped;

        /// <summary>Acts carried out by the main thread.</summary>
        public long Executed, Failed, Refused;

        /// <summary>Messages that were none, or of another session, epoch or order.</summary>
        public long Ignored;

        public long Sessions, Resumed, Reconnects, Errors;

        /// <summary>From the stamp of the observation to the arrival of its fresh call, newest one, in ms.</summary>
        public double LatencyMs;
    }
}
