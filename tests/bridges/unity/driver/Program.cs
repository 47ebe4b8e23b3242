using System;
using System.Collections.Generic;
using System.Diagnostics;

namespace RtControl.Driver
{
    internal static class Program
    {
        private static int Main(string[] args)
        {
            var given = new Dictionary<string, string>();
            for (var i = 1; i + 1 < args.Length; i += 2) given[args[i].TrimStart('-')] = args[i + 1];
            if (args[0] == "filter")
            {
                new Filter().Run();
                return 0;
            }
            return args[0] == "echo" ? Echo(given) : new Flight(given).Run();
        }

        /// <summary>Measures round trips of the transport alone, against an echo server.</summary>
        private static int Echo(Dictionary<string, string> given)
        {
            var transport = new ZmtpTransport(given["endpoint"]);
            while (transport.State == TransportState.Connecting) transport.Wait(100);
            var tookMs = new List<double>();
            var body = new byte[int.Parse(given["bytes"])];
            new Random(1).NextBytes(body);
            for (var i = 0; i < int.Parse(given["times"]); i++)
            {
                long began = Stopwatch.GetTimestamp();
                transport.Send(new[] { new[] { (byte)i }, body });
                List<byte[]> back;
                while ((back = transport.Receive()) == null && transport.State == TransportState.Up) transport.Wait(1000);
                double ms = (Stopwatch.GetTimestamp() - began) * 1e3 / Stopwatch.Frequency;
                if (back == null || back.Count != 2 || back[0][0] != (byte)i || Hex.Of(back[1]) != Hex.Of(body))
                {
                    Console.Error.WriteLine(transport.Trouble + ", round " + i);
                    return 1;
                }
                tookMs.Add(ms);
            }
            Flight.Tell("round_trip_ms", Flight.Quantiles(tookMs));
            transport.Close(10);
            return 0;
        }
    }
}
