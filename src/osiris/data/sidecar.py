"""XMP side-cars: IMAGE.jpg.xmp beside an image, by which photo programs read its tags. Images are never written."""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

from osiris.errors import UserError
from osiris.files import write_text

MARK = "osiris tag"
"""Side-cars of osiris are known by it; others stay as they are."""
PAGE = """<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/" x:xmptk="{mark}">
 <rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
  <rdf:Description rdf:about="" xmlns:dc="http://purl.org/dc/elements/1.1/">
   <dc:subject><rdf:Bag><rdf:li>{tag}</rdf:li></rdf:Bag></dc:subject>
  </rdf:Description>
 </rdf:RDF>
</x:xmpmeta>
<?xpacket end="w"?>
"""


def check_tag(tag: str) -> None:
    """Refuse what XML cannot hold."""
    if not tag.isprintable():
        raise UserError(f"the tag {tag!a} has characters that a side-car cannot hold; rename its folder.")


def write_sidecar(image: Path, tag: str, folders: list[Path]) -> bool:
    """Whether it was written: not for an image that is not in one of the folders once links are followed, and not in
    place of a side-car of another program."""
    place, parent = image.with_name(f"{image.name}.xmp"), image.parent.resolve()
    inside = any(parent.is_relative_to(folder.resolve()) for folder in folders)
    if not inside or not image.is_file() or place.is_symlink() or (place.exists() and not _own(place)):
        return False
    write_text(place, PAGE.format(mark=MARK, tag=escape(tag)))
    return True


def _own(place: Path) -> bool:
    return place.is_file() and f'x:xmptk="{MARK}"' in place.read_text(encoding="utf-8", errors="replace")[:1000]
