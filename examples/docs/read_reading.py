"""Read one Skylark packet of a Tern T2 weather station."""

import struct

PACKET_BYTES = 16
"""Every packet has sixteen bytes, least significant byte first."""


def read_packet(packet: bytes) -> dict[str, float]:
    """Return the five values of a packet, in degrees, percent, hectopascal, metres a second, mm."""
    if len(packet) != PACKET_BYTES:
        raise ValueError(f"a packet has {PACKET_BYTES} bytes, not {len(packet)}")
    station, tenths, humidity, _flags, pressure, wind, tips, _sign = struct.unpack(
        "<HhBBHHHI", packet
    )
    return {
        "station": station,
        "temperature": tenths / 10,
        "humidity": humidity,
        "pressure": pressure / 10,
        "wind": wind / 10,
        "rain": tips * 0.2,  # each tip of the bucket is 0.2 mm
    }
