using System.Collections.Generic;

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

        /// <summary>The safe calls of a message, under <paramref name="several"/> or, a single one, under <paramref name="one"/>.</summary>
        internal static List<RtCall> Safe(RtMap message, string several, string one)
        {
            var calls = new List<RtCall>();
            foreach (object call in message.List(several) ?? new List<object> { message.Map(one) })
                if (call != null) calls.Add(From((RtMap)call));
            return calls;
        }

        internal static List<object> Maps(IEnumerable<RtCall> calls)
        {
            var maps = new List<object>();
            foreach (RtCall call in calls) maps.Add(call.ToMap());
            return maps;
        }

        internal RtMap ToMap()
        {
            return new RtMap { { "name", Name }, { "arguments", Arguments } };
        }
    }
}
