"""The parameters of experiments that can use a TRex server elsewhere."""

from typing import Annotated, ClassVar, Self

from labkit.common.errors import BadInput
from labkit.measure.experiments.changes import Change
from labkit.measure.experiments.datapaths_parameters import DatapathParameters
from labkit.measure.parameters import refuse_given
from labkit.measure.traffic import registry
from labkit.measure.traffic.base import TrialGenerator
from labkit.measure.traffic.packet_generator import PacketGenerator
from labkit.measure.traffic.rates import TAGS_BYTES
from labkit.measure.traffic.trex import client
from labkit.measure.traffic.trex.generator import Trex

ONLY_OWN_SERVER = "not used with server=…: its ports reach a device that labkit does not build"
ONLY_WITH_SERVER = "not used without server=…: labkit's own server has the ports 0 and 1"

LINE_TAG = f"what encapsulation adds to a frame on the line: {', '.join(TAGS_BYTES)}"


class ServerParameters(DatapathParameters, frozen=True, kw_only=True):
    """What experiments share that can use a TRex server elsewhere.

    `OWN_DEVICE`: the parameters of what labkit builds, which lies between the ports of its own server only.
    """

    OWN_DEVICE: ClassVar[tuple[str, ...]] = ()

    generator: Annotated[
        str | None,
        "the traffic generator: packets, or trex (LABKIT_TREX=FOLDER with a TRex release, or server=HOST)",
    ] = None
    server: Annotated[
        str | None,
        "HOST or HOST:PORT of a TRex server that runs: PORT (4501) is that of its RPC, and its publisher has the port"
        " below (4500), as TRex's own; none: the generator runs on the topology",
    ] = None
    ports: Annotated[
        tuple[int, ...],
        "pairs of its ports that send to each other through the device: 0,1; a throughput search sends from the first"
        " of each pair alone",
    ] = (0, 1)
    force: Annotated[bool, "take ports that somebody else owns, and stop their traffic"] = False

    def check_server(self) -> None:
        """Raise BadInput for what a server elsewhere cannot be given, or what only such a server has."""
        if self.server is None:
            refuse_given(self, ("ports", "force"), ONLY_WITH_SERVER)
            return
        if self.load_generator.name != Trex.name:
            raise BadInput(
                f"generator={self.generator}: server={self.server} is a TRex server: leave generator out"
            )
        refuse_given(self, self.OWN_DEVICE, ONLY_OWN_SERVER)
        client.address(self.server)
        client.ports(self.ports)
        self.check_is_here()

    def check_is_here(self) -> None:
        """Raise BadInput for another host: this one starts or reaches the server."""
        if self.where != "here":
            raise BadInput(f"where={self.where}: a TRex server is reached from this machine: leave where out")

    def with_change(self, change: Change | None) -> Self:
        """Return the parameters of an arm with this change. Raises BadInput for a parameter that frames do not have."""
        if change is None or not change.parameters:
            return self
        given = {name: getattr(self, name) for name in self.__struct_fields__ if name not in self.ABSENT}
        return type(self).of({**given, "change": (), **change.parameters})

    @property
    def load_generator(self) -> TrialGenerator:
        usual_name = PacketGenerator.name if self.server is None else Trex.name
        return registry.find_trial(self.generator or usual_name)

    @property
    def companion(self) -> str | None:
        """TRex, for a server that runs elsewhere: its client must leave the server in order after the run."""
        return None if self.server is None else Trex.name

    @property
    def address(self) -> client.Address:
        """Where the server listens."""
        assert self.server is not None
        return client.address(self.server)
