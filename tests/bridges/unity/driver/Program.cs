using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.Net;
using System.Threading;

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
            if (args[0] == "lockstep") return Lockstep(given);
            if (args[0] == "frozen") return Frozen.Run(given);
            if (args[0] == "flood") return Flood(given);
            if (args[0] == "addresses") return Addresses(args);
            return args[0] == "echo" ? Echo(given) : new Flight(given).Run();
        }

        /// <summary>Round trips of observation and call, client-paced.</summary>
        private static int Lockstep(Dictionary<string, string> given)
        {
            var tools = new RtToolSet(new Rover());
            long answered = -1;
            var client = new RtClient(new RtOptions
            {
                Endpoint = given["endpoint"], Tools = tools.Definitions, SafeCalls = tools.SafeCalls, Pacing = "client", TtlMs = 0,
                Instruction = "Follow the road.",
            }, act =>
            {
                answered = act.SeqObs;
                return tools.Execute(act);
            });
            while (!client.Connected)
            {
                if (client.Ended != null) throw new InvalidOperationException(client.Ended);
                Thread.Sleep(10);
            }
            var tookMs = new List<double>();
            for (var i = 0; i < int.Parse(given["times"]); i++)
            {
                long began = Stopwatch.GetTimestamp();
                long seq = client.Observe("left 40 right 10");
                // A call that is absent (the model goes on) leaves nothing to carry out.
                while (answered != seq && client.Counts.Fresh <= i) Thread.Sleep(0);
                client.Pump();
                tookMs.Add((Stopwatch.GetTimestamp() - began) * 1e3 / Stopwatch.Frequency);
            }
            Flight.Tell("round_trip_ms", Flight.Quantiles(tookMs), "counts", client.Counts.Fresh, "answered", answered);
            client.Dispose();
            return 0;
        }

        /// <summary>Sends to a peer that does not read: how much was taken, and how long the longest send took.</summary>
        private static int Flood(Dictionary<string, string> given)
        {
            var transport = new ZmtpTransport(given["endpoint"]);
            while (transport.State == TransportState.Connecting) transport.Wait(100);
            var body = new byte[500000];
            var taken = 0;
            var sending = new Stopwatch();
            for (var i = 0; i < 100; i++)
            {
                sending.Start();
                if (transport.Send(new[] { body })) taken++;
                sending.Stop();
                transport.Wait(1);
            }
            var closing = Stopwatch.StartNew();
            transport.Close(30);
            Flight.Tell("taken", taken, "sending_ms", sending.Elapsed.TotalMilliseconds, "closing_ms", closing.Elapsed.TotalMilliseconds);
            return 0;
        }

        /// <summary>`addresses ENDPOINT ADDRESS...`: connects to the first one that can be.</summary>
        private static int Addresses(string[] args)
        {
            var addresses = new List<IPAddress>();
            for (var i = 2; i < args.Length; i++) addresses.Add(IPAddress.Parse(args[i]));
            var transport = new ZmtpTransport(args[1], addresses);
            while (transport.State == TransportState.Connecting) transport.Wait(100);
            Flight.Tell("state", transport.State.ToString(), "trouble", transport.Trouble);
            transport.Close(0);
            return 0;
        }

        /// <summary>Round trips of the transport alone, against an echo.</summary>
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
