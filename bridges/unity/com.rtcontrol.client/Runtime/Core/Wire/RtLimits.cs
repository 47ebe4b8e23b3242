namespace RtControl
{
    /// <summary>How much a message may hold (docs/protocol.md, section 10); both ways.</summary>
    public static class RtLimits
    {
        public const int MaxParts = 8;
        public const int MaxMessageBytes = 1 << 20;
        public const int MaxDepth = 16;
        public const int MaxStringBytes = 1 << 16;
        public const int MaxItems = 4096;
        public const int MaxTotalItems = 16384;
    }
}
