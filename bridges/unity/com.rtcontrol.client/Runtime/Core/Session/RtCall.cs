namespace RtControl
{
    /// <summary>A function call. Arguments by the names of the tool's schema; optional ones may be left out.</summary>
    public sealed class RtCall
    {
        public RtCall(string name, RtMap arguments = null)
        {
            Name = name;
            Arguments = arguments ?? new RtMap();
        }

        public string Name { get; private set; }
        public RtMap Arguments { get; private set; }

        internal static RtCall From(RtMap map)
        {
            return map == null ? null : new RtCall(map.Text("name"), map.Map("arguments"));
        }

        internal RtMap ToMap()
        {
            return new RtMap { { "name", Name }, { "arguments", Arguments } };
        }
    }
}
