using System;
using System.Collections.Generic;

namespace RtControl
{
    public enum RtTransportState
    {
        Connecting,
        Up,

        /// <summary>To be closed, and another one made after a pause.</summary>
        Lost,
    }

    /// <summary>
    /// One connection. All but <see cref="Wake"/> is called by one thread only, and nothing but <see cref="Wait"/> blocks.
    /// </summary>
    public interface IRtTransport
    {
        RtTransportState State { get; }

        /// <summary>Why there is no connection; once it is up, why there might be no answer. For people.</summary>
        string Trouble { get; }

        /// <summary>Whether a message is one part, a JSON text; else the parts are a msgpack header and buffers.</summary>
        bool Json { get; }

        /// <summary>False: it cannot be sent now.</summary>
        bool Send(IList<byte[]> parts);

        /// <summary>The next message's parts, null where there is none now.</summary>
        List<byte[]> Receive();

        /// <summary>Until something may be received, Wake is called, or the time is over; carries on with what is pending.</summary>
        void Wait(int milliseconds);

        /// <summary>Ends the present or next Wait; from any thread.</summary>
        void Wake();

        /// <summary>Gives what was sent up to so long to leave.</summary>
        void Close(int lingerMs);
    }
}
